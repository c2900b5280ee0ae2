"""Keeps jobs that Celery would discard: of an unknown task, undecodable, or invalid. In a rolling
deploy workers with the old code claim jobs that need the new one.

Such a job is requeued after a pause, while another live worker of its queue has other tasks; else
it is dead-lettered. If the worker dies in the pause, the job is in the private list and is
recovered.
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
from ..model.job import Job
from ..model.log_text import one_line_each
from ..model.words import command
from ..store.registry import Registry
from ..transport.deliveries import Delivery, delivery_of
from .stopping import told_to_stop
from .unreceivable import settle

logger = one_line_each(get_logger(__name__))

RETURNS = 40  # requeues of a job, for any reason, after which no worker is expected to know it

#: Longest pause (s) before a job is requeued; the first is 1 s, each next one 1 s longer. Without a
#: pause it would go round and round. All together they are a quarter of an hour.
LONGEST_PAUSE = 30

MOST_WAITING = 1000  # jobs of unknown tasks, about, that wait in memory to be requeued
#: Bytes of their messages, about: a producer may send large ones, and the worker's memory is that
#: of all its jobs.
MOST_WAITING_BYTES = 64 * 1024 * 1024

REMEMBERED = 3.0  # s for which the list of other workers is reused


class Discards:
    """Replacements of the methods by which a worker's consumer discards a message."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._others: list[Facts] = []
        self._asked_at = -REMEMBERED
        self._waiting: dict[Job, Delivery] = {}
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
                return self._return(delivery, here, returns, other)
            why = f"it went back to its queue {returns} times"
        owner = delivery.owner
        if not is_unknown:
            settle(delivery, owner.settlement.kill, f"{here}; {why}", self.worker.app)
            return discard(*args)  # Celery's, for its log and its signal
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

    def _return(self, delivery: Delivery, here: str, returns: int, other: Facts) -> None:
        """Requeue a job after a pause, in which it occupies no place in the prefetch, like one with
        an ETA. ``here``: why this worker cannot run it; ``other``: the worker that may."""
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s goes back to its queue: %s. Worker %s has other tasks, and may know it.",
            delivery.job.title,
            here,
            other.node or other.owner,
        )
        delivery.owner.leases.reserve(delivery.lease)
        self._waiting[delivery.job] = delivery
        if self._too_many_wait():  # Celery 5.5 clears its timer at a lost connection
            self._waiting = {job: held for job, held in self._waiting.items() if held.is_open}
        if self._too_many_wait():
            delivery.owner.leases.stop_claims(delivery.lease)
        qos = self.worker.consumer.qos
        qos.increment_eventually()

        def requeue() -> None:
            self._waiting.pop(delivery.job, None)
            qos.decrement_eventually()
            delivery.requeue("back")

        pause = min(returns + 1, LONGEST_PAUSE)
        self.worker.consumer.timer.call_after(pause, requeue)

    def _too_many_wait(self) -> bool:
        jobs = [*self._waiting]
        size = sum(len(job.payload) for job in jobs)
        return len(jobs) > MOST_WAITING or size > MOST_WAITING_BYTES

    def _who_may_know(self, delivery: Delivery) -> Facts | None:
        """Find a live worker with other tasks that consumes the job's queue."""
        now, owner = monotonic(), delivery.owner
        if now - self._asked_at > REMEMBERED:
            well, mine = Registry(owner.database).well(), owner.facts.tasks
            self._others, self._asked_at = [facts for facts in well if facts.tasks != mine], now
        queue_list = delivery.job.queue_list
        return next((facts for facts in self._others if queue_list in facts.lists), None)
