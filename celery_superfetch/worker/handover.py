"""A job that is handed to the pool: whether it may be now, and what the pool is called with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.exceptions import Ignore

from ..app.steps import is_tracer, run
from ..model.permit import clock
from ..model.step import Claim
from ..transport.deliveries import Delivery
from .forked_children import ending_forked_children
from .outcomes import TooLate


class NotStarted(Ignore):
    """A thread of the pool came to a job that had been withdrawn from it."""


def run_until(
    until: float, claim: Any, target: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run ``target``, in the pool's own process, if it is not past ``until`` (``clock``); ``claim``
    has the fields of its ``Claim``."""
    if (began := clock()) < until:
        with ending_forked_children(args):
            result = run(Claim(*claim), target, *args, **kwargs)
        if isinstance(result, tuple) and result[2] is None:  # Celery measures those that succeed
            return *result[:2], clock() - began
        return result
    return TooLate()


class Handover:
    waited = False  # it could not start at once

    def __init__(self, delivery: Delivery, request: Any, target: Any, *apply: Any) -> None:
        self.delivery, self.request, self.target = delivery, request, target
        self.args, self.kwargs, self.options = apply
        self.job, self.owner = delivery.job, delivery.owner
        self.take = partial(threading.Lock().acquire, False)  # True for whoever comes first

    @property
    def is_ours(self) -> bool:
        if self.owner.is_former(self.job):
            return False
        # With early ack one that was taken back is settled, and nobody else's either.
        return bool(self.request.acknowledged or self.owner.may_start(self.job))

    def may_begin(self) -> float:
        """Record it and note that the pool has it; until when it may begin, 0 for not now."""
        if self.request.acknowledged:
            return self.owner.deadline(self.job)
        # With early ack it may be settled before it runs: there would be no record to make.
        return self.owner.begin(self.job, record=self.request.task.acks_late)

    def claim(self) -> tuple[Any, ...]:
        """The fields of a ``Claim`` for who runs it. With early ack it is over by then, and nothing
        is handed on for it."""
        delivery, claimed = self.delivery, self.delivery.claimed
        (job, counters), token = claimed, claimed.token
        if self.request.acknowledged or not self.request.task.acks_late:
            return "", "", "", token
        place, key = delivery.channel.place, self.owner.key_of(job)
        if counters is None:
            return place, key, job.claim_id, token
        return place, key, job.claim_id, token, counters.steps, counters.claimed_at

    @property
    def decoded(self) -> Any:
        """``args`` for Celery's tracer in this process, where the request has read the body."""
        if not is_tracer(self.target):
            return self.args
        name, id, request, body, content_type, _ = self.args
        return name, id, request, self.request.message.payload if content_type else body, None, None

    def accept(self, accept: Callable[..., Any], *args: Any) -> Any:
        """In a thread of the pool; what was given up is still in its line."""
        if not self.take():
            raise NotStarted("given up")
        return accept(*args)
