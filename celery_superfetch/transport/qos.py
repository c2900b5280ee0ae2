"""What a channel has delivered, and how much more it may be given."""

from __future__ import annotations

from typing import Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from ..model.job import Job
from ..owner.in_flight.jobs import State
from .deliveries import Delivery, delivery_of

logger = get_logger(__name__)


class QoS(virtual.QoS):
    """What a channel has delivered. Redis knows the same from the private lists."""

    def in_use(self) -> int:
        fetch = self.channel._fetch
        ahead = 0
        if fetch is not None:
            # What runs on although its channel is closed: else jobs would be reserved behind it.
            ahead = len(fetch.backlog) + fetch.in_flight.jobs.counts[State.OUTLIVED]
        return len(self._delivered) - len(self._dirty) + ahead

    def can_consume(self) -> bool:
        return not self.prefetch_count or self.in_use() < self.prefetch_count

    def credit(self) -> int:
        fetch = self.channel.fetch
        if fetch.membership.heart.stopping:
            return 0
        if "can_consume" in self.__dict__:
            # Celery's worker_disable_prefetch counts free slots: of a second job that says nothing.
            return int(not fetch.backlog and bool(self.can_consume()))
        limit = self.channel.config.claim_limit
        if not self.prefetch_count:
            return limit
        return max(0, min(limit, self.prefetch_count - self.in_use()))

    def append(self, message: Any, delivery_tag: Any) -> None:
        # kombu's tag is made at publish; a job copied by hand brings it twice.
        if delivery_tag in self._delivered and delivery_tag not in self._dirty:
            delivery_tag = message.delivery_tag = uuid()
        super().append(message, delivery_tag)
        if isinstance(message._raw, Delivery):
            message._raw.tag = delivery_tag

    def delivery(self, delivery_tag: Any) -> Delivery | None:
        """What was delivered; None when it is settled, or was no claim (fanout)."""
        if delivery_tag in self._dirty:
            return None
        found = delivery_of(self._delivered.get(delivery_tag))
        return found if found is not None and not found.settled else None

    def ack(self, delivery_tag: Any) -> None:
        delivery = self.delivery(delivery_tag)
        self._quick_ack(delivery_tag)
        if delivery is not None:
            delivery.ack()

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        delivery = self.delivery(delivery_tag) if requeue else None
        if delivery is None:
            return self.ack(delivery_tag)
        delivery.requeue("back")

    def _in_hand(self) -> dict[Job, Any]:
        """What was delivered and not settled, the newest first -> its tag."""
        return {
            message._raw.job: tag
            for tag, message in reversed(list(self._delivered.items()))
            if tag not in self._dirty and isinstance(message._raw, Delivery)
        }

    def restore_unacked(self, client: Any = None) -> list[Any]:
        self._flush()
        if not (back := self._in_hand()):
            return []
        # What runs stays ours; its ack comes later, by way of the process, not of this channel.
        fetch, jobs = self.channel.fetch, self.channel.fetch.in_flight.jobs
        fetch.requeue(back)
        if given := sum(not jobs.runs(job) for job in back):
            logger.info("Giving %d jobs back to their queues.", given)
        for job, tag in back.items():
            if job not in jobs:
                del self._delivered[tag]
        return []

    def take_back_waiting(self, *, all_of_them: bool = True) -> int:
        """Give back what its consumer has not started, and now cannot; any thread may."""
        tags = self._in_hand()
        back = self.channel.fetch.in_flight.requeue_waiting(tags, all_of_them)
        for job in back:
            self._delivered.pop(tags[job], None)
        return len(back)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """kombu calls this at each close and at exit; it must not raise, nor mind twice."""
        self._on_collect.cancel()
        if self.channel.do_restore:
            self.restore_unacked()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Nothing comes back by a timeout: the reaper knows who is dead."""
