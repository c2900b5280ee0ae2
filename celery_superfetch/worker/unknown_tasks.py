"""Keeps jobs that Celery would discard: of an unknown task, undecodable, or invalid. In a rolling
deploy workers with the old code claim jobs that need the new one.

Celery's consumer calls ``Discards``, in its loop, in place of its own methods.

While another live worker of its queue has other tasks, such a job is parked: after a pause it
returns to its queue, where a worker that knows its task may claim it. Otherwise it is
dead-lettered. In the pause the job is on the server, and in no worker. If the worker dies before
the park is sent, the job is in the private list and is recovered.

Foreign names:

celery worker.consumer.consumer:Consumer.
    keep what Celery would discard: on_unknown_task(body,message,exc)
        on_invalid_task(body,message,exc) on_decode_error(message,exc)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.utils.log import get_logger

from ..app.chords import fail_part
from ..model.facts import Facts
from ..model.foreign import kind_of, message_of
from ..model.log_text import one_line_each
from ..model.words import command
from ..store.registry import Registry
from ..transport.deliveries import Delivery, delivery_of
from .stopping import told_to_stop
from .unreceivable import settle

logger = one_line_each(get_logger(__name__))

RETURNS = 40  # requeues of a job, for any reason, after which no worker is expected to know it

#: Longest pause (s) for which a job is parked; the first is 1 s, each next one 1 s longer. Without
#: a pause workers would claim it without end. All together they are a quarter of an hour.
LONGEST_PAUSE = 30

#: Seconds between the returns of two jobs that one worker has parked. If many returned at once,
#: this worker would claim and park them again before a worker that knows the task has run a few: of
#: 60 jobs of 0.2 s each was parked 11 times, instead of 1.9 times (``test_unknown_tasks.py``).
RETURN_SPACING = 0.5

#: Longest delay (s) that this spacing adds, so that a large number does not wait long after a
#: deploy has ended.
LONGEST_SPREAD = 300

REMEMBERED = 3.0  # s for which the list of other workers is reused


class Discards:
    """Replacements of the methods by which a worker's consumer discards a message."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._others: list[Facts] = []
        self._asked_at = -REMEMBERED
        self._last_return = 0.0  # monotonic s; when the job that was parked last returns
        for name in ("on_unknown_task", "on_invalid_task", "on_decode_error"):
            discard = getattr(worker.consumer, name)
            setattr(worker.consumer, name, partial(self._instead_of, discard))

    def _instead_of(self, discard: Callable[..., None], *args: Any) -> None:
        message, exc = args[-2:]
        delivery = delivery_of(message)
        if delivery is None or delivery.owner.config.unknown_tasks == "discard":
            return self._discard(discard, *args)
        if told_to_stop(delivery.owner):
            return None  # it is requeued with the others when the channel closes
        is_unknown = isinstance(exc, KeyError)  # the others have errors of their own
        here = f"cannot be read: {kind_of(exc)}"
        if is_unknown:
            here = f"task {message_of(exc)} is not registered"
        counters = delivery.lease.counters
        returns = counters.requeues if counters else 0
        why = "no other live worker of its queue has other tasks"
        if other := self._who_may_know(delivery):
            if returns < RETURNS:
                return self._postpone(delivery, here, returns, other)
            why = f"it went back to its queue {returns} times"
        owner = delivery.owner
        if not is_unknown:
            settle(delivery, owner.settlement.kill, f"{here}; {why}", self.worker.app)
            return discard(*args)  # Celery's, for its log and its signal
        # Without a failure notification: Celery's method, called next, informs the caller. If the
        # server is away, this raises, the consumer reconnects, and the job is requeued.
        dead = delivery.end_by(owner.settlement.bury, f"{here}; {why}")
        if dead is not None:
            logger.error(
                "Job %s is in the dead set: %s. Put it back with `%s dead retry %s` when a worker "
                "knows its task.",
                delivery.job.title,
                dead.reason,
                command(),
                dead.id,
            )
            self._discard(discard, *args)  # Celery's, which stores the failure for its caller
        return None

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

    def _postpone(self, delivery: Delivery, here: str, returns: int, other: Facts) -> None:
        """Park a job for a pause. ``here``: why this worker cannot run it; ``other``: the worker
        that may."""
        pause = min(returns + 1, LONGEST_PAUSE)
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s is scheduled for its queue again in %d s or more: %s. Worker %s has other "
            "tasks, and may know it.",
            delivery.job.title,
            pause,
            here,
            other.node or other.owner,
        )
        now = monotonic()
        self._last_return = max(now + pause, self._last_return + RETURN_SPACING)
        self._last_return = min(self._last_return, now + pause + LONGEST_SPREAD)
        delivery.postpone(self._last_return - now)

    def _who_may_know(self, delivery: Delivery) -> Facts | None:
        """Find a live worker with other tasks that consumes the job's queue."""
        now, owner = monotonic(), delivery.owner
        if now - self._asked_at > REMEMBERED:
            well, mine = Registry(owner.database).well(), owner.facts.tasks
            self._others, self._asked_at = [facts for facts in well if facts.tasks != mine], now
        queue_list = delivery.job.queue_list
        return next((facts for facts in self._others if queue_list in facts.lists), None)
