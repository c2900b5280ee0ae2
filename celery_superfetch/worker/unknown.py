"""What a worker does with a job of a task that it does not know: Celery discards it.

In a rolling deploy the workers of yesterday get the jobs of tomorrow. Owners tell a digest of the
names of their tasks: one with another digest may know the task.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any

from celery.utils.log import get_logger

from ..model.facts import Facts
from ..owner.membership import Membership
from ..store.registry import Registry
from ..transport.deliveries import Delivery, delivery_of
from .stopping import told_to_stop

logger = get_logger(__name__)

#: Times that a job goes back, for whatever reason, before it is taken for known to nobody.
RETURNS = 40

#: Seconds that it waits before it goes back, else it would run in circles: one more each time, up
#: to this. With the returns that is a quarter of an hour.
LONGEST_PAUSE = 30

#: Seconds for which it is remembered who else is there.
REMEMBERED = 3.0


class UnknownTasks:
    """Goes before Celery's ``on_unknown_task``."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.discard = worker, worker.consumer.on_unknown_task
        self._others: list[Facts] = []
        self._looked = -REMEMBERED

    def __call__(self, body: Any, message: Any, exc: Exception) -> None:
        delivery = delivery_of(message)
        if delivery is None or (how := delivery.membership.config.unknown_tasks) == "discard":
            return self.discard(body, message, exc)
        if told_to_stop(delivery.membership):
            return None  # it goes back with the others, when the channel closes
        earlier = delivery.claimed.earlier
        returns = earlier.requeues if earlier else 0
        why = "no other live worker of its queue has other tasks"
        if how == "dead":
            why = "unknown_tasks is 'dead'"
        elif other := self._who_may_know(delivery):
            if returns < RETURNS:
                return self._return(delivery, returns, other)
            why = f"it went back to its queue {returns} times"
        bury = delivery.membership.lost_runs.bury
        dead = delivery.end_by(bury, f"task {exc} is not registered; {why}")
        if dead is not None:
            logger.error(
                "Job %s is in the dead set as %s: %s. Put it back with `celery superfetch dead "
                "retry` when a worker knows its task.",
                delivery.job.title,
                dead.id,
                dead.reason,
            )
            self.discard(body, message, exc)  # which is left to do: tell its caller
        return None

    def _return(self, delivery: Delivery, returns: int, other: Facts) -> None:
        """Give it back in a while; until then it takes no place from others, as one with an ETA."""
        logger.log(
            logging.DEBUG if returns else logging.WARNING,
            "Job %s is of a task that this worker does not know. It goes back to its queue: %s, "
            "with other tasks, may know it.",
            delivery.job.title,
            other.node or other.owner,
        )
        delivery.in_flight.wait(delivery.job)
        qos = self.worker.consumer.qos
        qos.increment_eventually()

        def give_back() -> None:
            qos.decrement_eventually()
            delivery.requeue("back")

        pause = min(returns + 1, LONGEST_PAUSE)
        self.worker.consumer.timer.call_after(pause, give_back)

    def _who_may_know(self, delivery: Delivery) -> Facts | None:
        """A live owner with other tasks that takes jobs from the same queue."""
        now = monotonic()
        if now - self._looked > REMEMBERED:
            self._others, self._looked = _others(delivery.membership), now
        queue_list = delivery.job.queue_list
        return next((one for one in self._others if queue_list in one.lists), None)


def _others(membership: Membership) -> list[Facts]:
    registry = Registry(membership.database)
    scores, now = registry.owners(), membership.database.server_time()
    mine = membership.heart.facts.tasks
    return [
        facts
        for owner, facts in registry.facts(scores).items()
        if facts.tasks != mine
        and facts.state == "running"
        and now - scores[owner] < facts.owner_ttl * 1000
    ]


def keep_unknown(worker: Any) -> None:
    """Have ``worker`` give back, or bury, what it does not know."""
    worker.consumer.on_unknown_task = UnknownTasks(worker)
