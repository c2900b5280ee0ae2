"""Jobs that Celery would discard: it does not know their task, cannot decode them, or calls them
invalid. In a rolling deploy the workers of yesterday get the jobs of tomorrow, which owners with
other tasks may know."""

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
from ..model.foreign import describe, message_of
from ..model.job import Job
from ..model.words import command
from ..store.registry import Registry
from ..transport.deliveries import Delivery, delivery_of
from .stopping import told_to_stop
from .unreceivable import settle

logger = get_logger(__name__)

RETURNS = 40  # times that a job goes back, for whatever reason, until nobody is taken to know it

#: Seconds that it waits before it goes back, else it would run in circles: one more each time, up
#: to this. With the returns that is a quarter of an hour.
LONGEST_PAUSE = 30

MOST_WAITING = 1000  # jobs of unknown tasks that wait in memory to go back, about

REMEMBERED = 3.0  # seconds for which it is known who else is there


class Discards:
    """Goes before what Celery does with them."""

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
            return None  # it goes back with the others, when the channel closes
        is_unknown = isinstance(exc, KeyError)  # the others have errors of their own
        here = f"cannot be read: {describe(exc)}"
        if is_unknown:
            here = f"task {message_of(exc)} is not registered"
        counters = delivery.claimed.counters
        returns = counters.requeues if counters else 0
        why = "no other live worker of its queue has other tasks"
        if other := self._who_may_know(delivery):
            if returns < RETURNS:
                return self._return(delivery, here, returns, other)
            why = f"it went back to its queue {returns} times"
        owner = delivery.owner
        if not is_unknown:
            settle(delivery, owner.kill, f"{here}; {why}", self.worker.app)
            return discard(*args)  # which is left to do: log it, and send its signal
        dead = delivery.end_by(owner.bury, f"{here}; {why}")
        if dead is not None:
            logger.error(
                "Job %s is in the dead set: %s. Put it back with `%s dead retry %s` when a worker "
                "knows its task.",
                delivery.job.title,
                dead.reason,
                command(),
                dead.id,
            )
            self._discard(discard, *args)  # which is left to do: tell its caller
        return None

    def _discard(self, discard: Callable[..., None], *args: Any) -> None:
        """As Celery does, and end the chord that waits for a job of an unknown task."""
        discard(*args)
        message, exc = args[-2:]
        if isinstance(exc, KeyError):
            is_v2 = "task" in message.headers
            embed = message.payload[2] if is_v2 else message.payload
            request = Context({**(embed or {}), **(message.headers if is_v2 else {})})
            fail_part(self.worker.app.backend, request, NotRegistered(*exc.args))

    def _return(self, delivery: Delivery, here: str, returns: int, other: Facts) -> None:
        """Give it back in a while; until then it takes no place from others, as one with an ETA."""
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s goes back to its queue: %s. Worker %s has other tasks, and may know it.",
            delivery.job.title,
            here,
            other.node or other.owner,
        )
        delivery.owner.wait(delivery.job)
        self._waiting[delivery.job] = delivery
        if len(self._waiting) > MOST_WAITING:  # Celery 5.5 clears its timer at a lost connection
            self._waiting = {job: held for job, held in self._waiting.items() if held.is_open}
        if len(self._waiting) > MOST_WAITING:
            delivery.channel.qos.awaited.add(delivery.job.claim_id)
        qos = self.worker.consumer.qos
        qos.increment_eventually()

        def requeue() -> None:
            self._waiting.pop(delivery.job, None)
            qos.decrement_eventually()
            delivery.requeue("back")

        pause = min(returns + 1, LONGEST_PAUSE)
        self.worker.consumer.timer.call_after(pause, requeue)

    def _who_may_know(self, delivery: Delivery) -> Facts | None:
        """A live owner with other tasks that takes jobs from the same queue."""
        now, owner = monotonic(), delivery.owner
        if now - self._asked_at > REMEMBERED:
            well, mine = Registry(owner.database).well(), owner.facts.tasks
            self._others, self._asked_at = [facts for facts in well if facts.tasks != mine], now
        queue_list = delivery.job.queue_list
        return next((facts for facts in self._others if queue_list in facts.lists), None)
