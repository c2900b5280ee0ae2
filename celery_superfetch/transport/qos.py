"""What a channel has delivered, and how much more it may be given."""

from __future__ import annotations

from typing import Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from ..model.job import Claimed, Job
from ..owner.in_flight.jobs import State
from .deliveries import Delivery, delivery_of

logger = get_logger(__name__)


class QoS(virtual.QoS):
    """What a channel has delivered and nobody has settled. Redis knows it from the private lists.

    kombu, whose dicts were Python's once, notes what is settled and drops it later; here it goes.
    """

    def in_use(self) -> int:
        fetch = self.channel._fetch
        ahead = 0
        if fetch is not None:
            # What runs on although its channel is closed: else jobs would be reserved behind it.
            ahead = len(fetch.backlog) + fetch.in_flight.jobs.counts[State.OUTLIVED]
        return len(self._delivered) + ahead

    def can_consume(self) -> bool:
        return not self.prefetch_count or self.in_use() < self.prefetch_count

    def credit(self) -> int:
        fetch = self.channel.fetch
        if fetch.membership.heart.stopping:
            return 0
        if "can_consume" in self.__dict__:
            # Celery's worker_disable_prefetch counts free slots: of a second job that says nothing.
            return int(not fetch.backlog and bool(self.can_consume()))
        limit: int = fetch.membership.config.claim_limit
        if not self.prefetch_count:
            return limit
        return max(0, min(limit, self.prefetch_count - self.in_use()))

    def append(self, message: Any, delivery_tag: Any) -> None:
        # kombu's tag is made at publish; a job copied by hand brings it twice.
        if delivery_tag in self._delivered:
            delivery_tag = message.delivery_tag = uuid()
        self._delivered[delivery_tag] = message

    def receive(self, claimed: Claimed) -> Any:
        """The message in a payload; None when it is none and was put into quarantine."""
        try:
            delivery = Delivery(claimed, self.channel)
            message = self.channel.Message(delivery, channel=self.channel)
            delivery["body"] = None  # the message has it, and the payload goes back as it came
            self.append(message, message.delivery_tag)
            delivery.tag = message.delivery_tag
            return message
        except Exception:  # whatever a payload can do to a parser must not end the worker
            self.channel.membership.lost_runs.quarantine(claimed.job)
            return None

    def delivery(self, delivery_tag: Any) -> Delivery | None:
        """What was delivered; None when it is settled, or was no claim (fanout)."""
        found = delivery_of(self._delivered.get(delivery_tag))
        return found if found is not None and not found.settled else None

    def forget(self, delivery_tag: Any) -> None:
        self._delivered.pop(delivery_tag, None)

    def ack(self, delivery_tag: Any) -> None:
        delivery = self.delivery(delivery_tag)
        self.forget(delivery_tag)
        if delivery is not None:
            delivery.ack()

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        delivery = self.delivery(delivery_tag) if requeue else None
        if delivery is None:
            return self.ack(delivery_tag)
        delivery.requeue("back")

    def _in_hand(self) -> dict[Job, Any]:
        """The jobs that were delivered and not settled, the newest first -> their tags."""
        found = map(delivery_of, reversed(list(self._delivered.values())))
        return {delivery.job: delivery.tag for delivery in found if delivery is not None}

    def restore_unacked(self, client: Any = None) -> list[Any]:
        if not (back := self._in_hand()):
            return []
        # What runs stays ours; its ack comes later, by way of the process, not of this channel.
        fetch, jobs = self.channel.fetch, self.channel.fetch.in_flight.jobs
        fetch.requeue(back)
        if given := sum(not jobs.runs(job) for job in back):
            logger.info("Giving %d jobs back to their queues.", given)
        for job, tag in back.items():
            if job not in jobs:
                self.forget(tag)
        return []

    def take_back_waiting(self, *, all_of_them: bool = True) -> int:
        """Give back what its consumer has not started, and now cannot; any thread may."""
        tags = self._in_hand()
        back = self.channel.fetch.in_flight.requeue_waiting(tags, all_of_them)
        for job in back:
            self.forget(tags[job])
        return len(back)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """kombu calls this at each close and at exit; it must not raise, nor mind twice."""
        self._on_collect.cancel()
        if self.channel.do_restore:
            self.restore_unacked()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Nothing comes back by a timeout: the reaper knows who is dead."""
