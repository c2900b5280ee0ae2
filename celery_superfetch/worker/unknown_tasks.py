"""Keeps jobs that Celery would discard: of an unknown task, undecodable, or invalid. In a rolling
deploy workers with the old code claim jobs that need the new one.

``bootsteps.Maintenance`` makes a ``Discards``, which puts itself in the place of three methods of
Celery's consumer. The consumer calls it in its loop.

If a live worker that consumes the job's queue (or is starting, and consumes none yet) has
registered other tasks than this one, the job is *parked*: it waits in Redis, in no worker, and
returns to its queue after a pause, where a worker that knows its task may claim it. Otherwise the
job is moved to the dead set.

If the worker dies before the park is sent, the job is in its owner's private list in Redis, and the
reaper of another worker recovers it, without a strike unless its start was recorded (a claim
records the starts of as many jobs as slots are free). Before a job of an unknown task is moved to
the dead set, Celery's method stores its failure, and its chord is failed. If the result backend is
away, or Redis has refused the last move, the move also queues a *notice* (the job that informs the
caller later). If the worker dies between the two, or the move is refused, the job is recovered or
requeued, and its caller is informed once more. An undecodable or invalid job is moved first, always
with a notice, and Celery's method is called after that: if the worker dies in between, only its log
line and its signal are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.utils.log import get_logger

from ..app.backend_lock import BACKEND_PAUSE_S
from ..app.chords import fail_part
from ..app.result_backends import asked_once
from ..model.dead_job import DeadJob
from ..model.foreign import describe, kind_of, message_of
from ..model.humanize import command
from ..model.log_text import one_line_each
from ..model.owner_record import OwnerRecord
from ..owner.in_flight.lease import Lease
from ..owner.in_flight.settlement import Settlement
from ..store.owner_registry import OwnerRegistry
from ..transport.deliveries import Delivery, delivery_of
from .settling import settle
from .stopping import is_stopping

logger = one_line_each(get_logger(__name__))

REQUEUES_MAX = 40  # requeues of a job, for any reason, after which no worker is expected to know it

#: Longest pause (s) for which a job is parked; the first is 1 s, each next one 1 s longer. All
#: pauses of a job together are 13 minutes. Without pauses workers would claim the job
#: again and again.
LONGEST_PAUSE = 30

#: Seconds between the returns of two jobs that one worker has parked. If many returned at once,
#: this worker would claim and park them again before a worker that knows the task has run a few.
#: Measured with 60 jobs that take 0.2 s: each job was parked 11 times, and with this spacing 1.9
#: times (``test_unknown_tasks.py``).
RETURN_SPACING = 0.5

#: Longest delay (s) that this spacing adds, so that a large number does not wait long after a
#: deploy has ended.
LONGEST_SPREAD = 300

PEERS_REUSED_S = 3.0  # s for which the list of live workers is reused


class Discards:
    """Replacements of the methods by which a worker's consumer discards a message. They park the
    job or move it to the dead set instead."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._others: list[OwnerRecord] = []
        self._asked_at = -PEERS_REUSED_S
        self._failed_at = -inf  # monotonic s; when the result backend last failed
        self._last_return = 0.0  # monotonic s; when the job that was parked last returns
        for name in ("on_unknown_task", "on_invalid_task", "on_decode_error"):
            discard = getattr(worker.consumer, name)
            setattr(worker.consumer, name, partial(self._instead_of, discard))

    def _instead_of(self, discard: Callable[..., None], *args: Any) -> None:
        message, exc = args[-2:]
        delivery = delivery_of(message)
        if delivery is None or delivery.owner.config.unknown_tasks == "discard":
            return self._discard(discard, *args)
        if is_stopping(delivery.owner):
            return None  # it is requeued with the others when the channel closes
        # ``on_unknown_task`` gets a KeyError, the other two methods get other errors.
        is_unknown = isinstance(exc, KeyError)
        here = f"cannot be read: {kind_of(exc)}"
        if is_unknown:
            here = f"task {message_of(exc)} is not registered"
        counters = delivery.lease.counters
        returns = counters.requeues if counters else 0
        why = "all live workers of its queue have the same tasks"
        if other := self._who_may_know(delivery):
            if returns < REQUEUES_MAX:
                return self._postpone(delivery, here, returns, other)
            why = f"it was requeued {returns} times"
        settlement, reason = delivery.owner.settlement, f"{here}; {why}"
        if not is_unknown:
            dead = settle(delivery, settlement.kill, reason, self.worker.app)
            # Celery's, for its log and its signal. If the move is deferred, the job is still to be
            # moved: an ack would lose it. A job that was requeued comes back, each few seconds.
            if dead is not None or delivery.is_open:
                discard(*args[:-2], _unsettled(message), exc)
            return None
        if not delivery.is_open:
            return None
        # While the server refuses moves, each job comes back again and again. If its caller were
        # informed first, that would be each time.
        are_refused = delivery.channel.qos.refusals.lasts
        if not are_refused and self._informs_caller(delivery, discard, *args):
            settle(delivery, partial(_kill, settlement), reason)
        else:
            settle(delivery, settlement.kill, reason, self.worker.app)
        return None

    def _informs_caller(self, delivery: Delivery, discard: Callable[..., None], *args: Any) -> bool:
        """Store the failure of a job of an unknown task by Celery's method, and fail its chord;
        return whether that has succeeded. If it came after the move to the dead set and failed, the
        caller would never be informed."""
        if monotonic() - self._failed_at < BACKEND_PAUSE_S:
            return False
        *body, message, exc = args
        try:
            with asked_once(self.worker.app.backend):
                self._discard(discard, *body, _unsettled(message), exc)
        except Exception as error:
            self._failed_at = monotonic()
            logger.warning(
                "The failure of job %s, whose task is unknown, could not be stored (%s): a failure "
                "notification informs its caller when the result backend answers. Check the "
                "result backend.",
                delivery.job.title,
                describe(error),
            )
            return False
        return True

    def _discard(self, discard: Callable[..., None], *args: Any) -> None:
        """Discard a message as Celery does, and fail the chord that waits for a job of an unknown
        task."""
        discard(*args)
        message, exc = args[-2:]
        if isinstance(exc, KeyError):
            is_v2 = "task" in message.headers
            embed = message.payload[2] if is_v2 else message.payload
            request = Context({**(embed or {}), **(message.headers if is_v2 else {})})
            fail_part(self.worker.app.backend, request, NotRegistered(*exc.args))

    def _postpone(self, delivery: Delivery, here: str, returns: int, other: OwnerRecord) -> None:
        """Park a job for a pause. ``here``: why this worker cannot run it; ``other``: a worker that
        may know its task."""
        pause = min(returns + 1, LONGEST_PAUSE)
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s waits for %d s or more, and then returns to its queue: %s on this worker. "
            "Worker %s has other tasks, and may run it. During a deploy no action is needed; "
            "otherwise deploy the same code to all workers of the queue.",
            delivery.job.title,
            pause,
            here,
            other.node or other.owner,
        )
        now = monotonic()
        self._last_return = max(now + pause, self._last_return + RETURN_SPACING)
        self._last_return = min(self._last_return, now + pause + LONGEST_SPREAD)
        delivery.postpone(self._last_return - now)

    def _who_may_know(self, delivery: Delivery) -> OwnerRecord | None:
        """Return a live worker that has registered other tasks than this one, and consumes the
        job's queue; None if there is none. A worker without any queue yet may be about to consume
        this one: a worker registers before it consumes, and one of the new code that starts just
        now is the one for which the job waits."""
        now, owner = monotonic(), delivery.owner
        if now - self._asked_at > PEERS_REUSED_S:
            well, own_tasks = OwnerRegistry(owner.database).healthy(), owner.record.tasks
            self._others = [record for record in well if record.tasks != own_tasks]
            self._asked_at = now
        queue_list = delivery.job.queue_list
        may = (f for f in self._others if queue_list in f.lists or is_starting(f))
        return next(may, None)


def _unsettled(message: Any) -> Any:
    """Return a copy of a message. Celery's methods ack or reject it, and that does not settle its
    job."""
    unsettled = copy(message)
    unsettled.ack = unsettled.reject_log_error = lambda *_, **__: None
    return unsettled


def _kill(settlement: Settlement, lease: Lease, why: str) -> DeadJob | None:
    """Dead-letter a job of an unknown task whose caller is informed, and log it. (The other method,
    ``Settlement.kill``, logs by itself.)"""
    dead = settlement.kill_without_notice(lease, why)
    if dead is not None:
        logger.error(
            "Job %s moved to the dead set: %s. Deploy a worker that has its task, then requeue it "
            "with `%s dead retry %s`.",
            lease.job.title,
            dead.reason,
            command(),
            dead.id,
        )
    return dead


def is_starting(other: OwnerRecord) -> bool:
    """Return whether a worker has registered its tasks, and no queue yet."""
    return bool(other.tasks) and not other.lists
