"""The former way to start jobs, by a patched ``pool.apply_async``, behind ``BY_HANDOVER``: a job on
its way from the gate to the pool."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ..app.steps import is_tracer
from ..transport.deliveries import Delivery
from .pool_adapter import NotStarted

#: Jobs start in the former way (CI runs both).
BY_HANDOVER = os.environ.get("SUPERFETCH_BY_HANDOVER") == "1"


class Handover:
    """A job whose request has called ``pool.apply_async``, until it has left the pool.

    Arguments:
        target: Celery's tracer.
        apply: args, kwargs and options of ``apply_async``.
    """

    waited = False  # it could not start at once

    def __init__(self, delivery: Delivery, request: Any, target: Any, *apply: Any) -> None:
        self.delivery, self.request, self.target = delivery, request, target
        self.args, self.kwargs, self.options = apply
        self.lease, self.job, self.owner = delivery.lease, delivery.job, delivery.owner
        #: True for the first caller alone: the pool's thread that starts it, or the gate that
        #: withdraws it.
        self.take = partial(threading.Lock().acquire, False)

    @property
    def is_ours(self) -> bool:
        """Whether this worker still may start the job."""
        if self.owner.leases.is_former(self.lease):
            return False
        # With early ack a job that came back too late is settled already, and in no other worker.
        return bool(self.request.acknowledged or self.lease.may_start)

    def may_begin(self) -> float:
        """Record that the job runs; return its deadline (``clock``), 0 if it may not start now."""
        if self.request.acknowledged:
            return self.owner.leases.deadline(self.lease)
        # With early ack the job may be settled before it runs: no start record is needed.
        return self.owner.leases.start(self.lease, record=self.request.task.acks_late)

    def claim(self) -> tuple[Any, ...]:
        """Return the fields of the job's ``Claim``, for the process that runs it. With early ack
        they are empty: the claim ends before the run, and the job's steps are published as in
        stock."""
        delivery, claimed = self.delivery, self.lease.claimed
        (job, counters), token = claimed, claimed.token
        if self.request.acknowledged or not self.request.task.acks_late:
            return "", "", "", token
        place, key = delivery.channel.place, self.owner.private_lists.key_of(job)
        if counters is None:
            return place, key, job.claim_id, token
        return place, key, job.claim_id, token, counters.steps, counters.claimed_at

    @property
    def decoded(self) -> Any:
        """The arguments for Celery's tracer in this process, with the body that the request has
        decoded: decoding it again would double the cost."""
        if not is_tracer(self.target):
            return self.args
        name, id, request, body, content_type, _ = self.args
        return name, id, request, self.request.message.payload if content_type else body, None, None

    def accept(self, accept: Callable[..., Any], *args: Any) -> Any:
        """Call the pool's accept callback, in a thread of the pool. NotStarted: the gate has
        withdrawn the job, which is still in the pool's queue."""
        if not self.take():
            raise NotStarted("withdrawn")
        return accept(*args)
