"""What a channel has delivered, and how much more it may be given."""

from __future__ import annotations

from threading import RLock
from typing import Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils.uuid import uuid

from .job import Claimed, Job

logger = get_logger(__name__)


#: Held while a delivery is started or given back: whoever comes first has it.
_deciding = RLock()


class Delivered(dict[str, Any]):
    """A decoded message that remembers its claim; kombu keeps it as ``message._raw``."""

    claimed: Claimed
    #: Whether it may be given back behind its consumer's back: "" nobody said so, "waits" its
    #: consumer asks ``start`` before it runs it, then "started" or "back".
    stage = ""
    #: Its ack is on its way; its consumer will say so in a moment.
    settled = False

    def start(self) -> bool:
        """Ask before the job runs; False when it was given back meanwhile."""
        with _deciding:
            if self.stage == "waits":
                self.stage = "started"
            return self.stage != "back"

    def take_back(self) -> bool:
        """Ask before the job is given back; False when it may run."""
        with _deciding:
            if self.stage == "waits":
                self.stage = "back"
                return True
            return False


def claim_of(request: Any) -> Claimed | None:
    """The claim that a Celery request stands for; None for what is not fetched reliably."""
    raw = getattr(getattr(request, "message", None), "_raw", None)
    return raw.claimed if isinstance(raw, Delivered) else None


class QoS(virtual.QoS):
    """What a channel has delivered. Redis knows the same from the private lists."""

    def in_use(self) -> int:
        """Jobs that count against the prefetch."""
        channel = self.channel
        return len(self._delivered) - len(self._dirty) + channel.waiting + channel.outlived

    def can_consume(self) -> bool:
        return not self.prefetch_count or self.in_use() < self.prefetch_count

    def credit(self) -> int:
        """How many more jobs may be claimed now."""
        if self.channel.stopping:
            return 0
        limit = self.channel.config.claim_limit
        if "can_consume" in self.__dict__:
            # Celery's worker_disable_prefetch counts free pool slots in its own way, which
            # says nothing of the second job.
            return int(not self.channel.waiting and bool(self.can_consume()))
        if not self.prefetch_count:
            return limit
        return max(0, min(limit, self.prefetch_count - self.in_use()))

    def append(self, message: Any, delivery_tag: Any) -> None:
        # kombu's tag is made at publish; a job copied by hand brings it twice.
        if delivery_tag in self._delivered and delivery_tag not in self._dirty:
            delivery_tag = message.delivery_tag = uuid()
        super().append(message, delivery_tag)

    def claimed(self, delivery_tag: Any) -> Claimed | None:
        """The claim behind a delivery; None when it is settled, or was no claim (fanout)."""
        if delivery_tag in self._dirty:
            return None
        raw = getattr(self._delivered.get(delivery_tag), "_raw", None)
        return raw.claimed if isinstance(raw, Delivered) and not raw.settled else None

    def settle_first(self, delivery_tag: Any) -> None:
        """Settle a delivery that its consumer is going to ack in a moment.

        Its tag stays taken until then: a copy with the same one must not be acked with it.
        """
        claimed = self.claimed(delivery_tag)
        if claimed is not None:
            self._delivered[delivery_tag]._raw.settled = True
            self.channel.settle(claimed)

    def ack(self, delivery_tag: Any) -> None:
        claimed = self.claimed(delivery_tag)
        self._quick_ack(delivery_tag)
        if claimed is not None:
            self.channel.settle(claimed)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        if not requeue:
            return self.ack(delivery_tag)
        self.give_back(delivery_tag, "back")

    def give_back(self, delivery_tag: Any, where: str) -> None:
        """Requeue a delivery that does not run (any more)."""
        claimed = self.claimed(delivery_tag)
        self._quick_ack(delivery_tag)
        if claimed is not None:
            self.channel.fetch.in_flight.ended(claimed.job)
            self.channel.requeue([claimed.job], where)

    def never_started(self, delivery_tag: Any) -> None:
        """A delivery was dropped unstarted: it had been taken away, or given back."""
        claimed = self.claimed(delivery_tag)
        self._quick_ack(delivery_tag)
        if claimed is not None:
            self.channel.fetch.in_flight.drop(claimed.job)

    def restore_unacked(self, client: Any = None) -> list[Any]:
        """Give back what was delivered and does not run, in its old order."""
        self._flush()
        back: dict[Job, Any] = {}
        for tag, message in reversed(list(self._delivered.items())):
            raw = message._raw
            if isinstance(raw, Delivered):
                raw.take_back()  # where timers have greenlets, one may be about to start it
                back[raw.claimed.job] = tag
        if not back:
            return []
        in_flight = self.channel.fetch.in_flight
        # What runs stays ours; its ack comes later, by way of the process, not of this channel.
        for job in in_flight.running():
            if back.pop(job, None) is not None:
                in_flight.outlived.add(job)
        logger.info("Giving %d jobs back to their queues.", len(back))
        self.channel.requeue(back, "front")
        for job, tag in back.items():
            # One that a pool started at this very moment is acked under its tag as well.
            if not in_flight.holds(job):
                del self._delivered[tag]
        return []

    def take_back_waiting(self) -> list[Job]:
        """Deliveries whose consumer has not started them, and now cannot; newest first.

        Any thread may call it: the consumer's may be busy with a job.
        """
        back: list[Job] = []
        for tag, message in reversed(list(self._delivered.items())):
            raw = message._raw
            if tag not in self._dirty and isinstance(raw, Delivered) and raw.take_back():
                self._delivered.pop(tag, None)
                back.append(raw.claimed.job)
        return back

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """kombu calls this at each close and at exit; it must not raise, nor mind twice."""
        self._on_collect.cancel()
        if self.channel.do_restore:
            self.restore_unacked()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Nothing comes back by a timeout: the reaper knows who is dead."""
