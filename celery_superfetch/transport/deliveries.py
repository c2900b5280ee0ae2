"""The jobs that consumers have: a delivery of each, the ways in which it may leave, and how many a
channel may have.

kombu calls ``QoS``, once for each message that is acked or rejected, and when the channel closes;
the worker calls ``Delivery``: a request that ends acks it, and a job that cannot run leaves by
``end_by``. They do so in the thread of the consumer's loop, and in a pool's threads and greenlets
for the jobs that end there. If the process dies, each job that was not acked on the server is in
the owner's private list, and runs again.

Foreign names:

kombu transport.virtual:
    requeue jobs when a channel closes: QoS.restore_unacked() QoS.restore_unacked_once(stderr)
    put back what a cancelled read has taken: Channel._restore(message)
celery worker.
    count the free slots where Celery does: consumer.tasks:Tasks.can_consume>=5.6
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils import json

from ..model.job import DELIVERY, Job
from ..model.log_text import one_line_each
from ..model.words import number
from .fetch.credit import Credit

if TYPE_CHECKING:
    from ..model.dead_job import DeadJob
    from ..owner.in_flight.lease import Lease
    from ..owner.owner import Owner

logger = one_line_each(get_logger(__name__))


def mark_redelivered(message: dict[str, Any]) -> None:
    """Say in a decoded message that it was delivered before, in both places where kombu does."""
    message["properties"]["delivery_info"]["redelivered"] = True
    message["headers"] = {**(message.get("headers") or {}), "redelivered": True}


class Delivery:
    """A claimed job that a consumer has, and the ways in which it may leave.

    If the process dies, the job stays in the owner's private list, and the reaper recovers it.
    """

    def __init__(self, lease: Lease, channel: Any) -> None:
        self.lease, self.job, self.channel = lease, lease.job, channel
        self.owner: Owner = channel.owner

    @property
    def is_open(self) -> bool:
        """Whether the job is not settled yet."""
        return self.channel.qos.delivery(self.job.claim_id) is not None

    def ack(self) -> None:
        """Ack the job. If the process dies before the ack is sent, the job runs again.

        The ack waits for the loop's next tick, which sends it with others. It is sent at once where
        no tick comes by itself (``Poller.comes_back``, or the channel fetches no more), and in the
        callback of the last job that was ready: no claim follows soon that would bring it along.
        """
        channel, fetch, owner = self.channel, self.channel.fetch, self.owner
        channel.qos.drop(self.job)
        owner.leases.ack(self.lease)
        # Of a channel that fetches no more, no later tick would read the reply.
        waits_for_reply = channel.closed or not channel.consumes
        if waits_for_reply or not fetch.poller.comes_back or fetch.delivers_the_last:
            try:
                owner.leases.flush(wait=waits_for_reply)
            except (*channel.connection_errors, channel.ResponseError) as exc:
                logger.warning(
                    "The ack of job %s could not be sent yet (%s). It is kept and sent again; "
                    "if this process dies before, the job runs again.",
                    self.job.title,
                    exc,
                )
        fetch.poller.wake()

    def requeue(self, where: str = "front") -> None:
        """Requeue the job to the ``front`` or the ``back`` of its queue, without a strike."""
        if self.is_open:
            self.drop()
            self.channel.fetch.requeue([self.lease], where)

    def postpone(self, seconds: float) -> None:
        """Park the job, which cannot run now: after so many seconds it returns to its queue. If the
        process dies before that is sent, the reaper recovers the job."""
        if not self.is_open:
            return
        self.drop()
        leases, channel = self.owner.leases, self.channel
        leases.postpone(self.lease, seconds)
        if channel.closed or not channel.consumes:  # no tick follows that would send it
            # After an error it stays pending, and the next send has it.
            with suppress(*channel.connection_errors, channel.ResponseError):
                leases.flush()

    def end_by(self, way: Callable[..., DeadJob | None], *args: Any) -> DeadJob | None:
        """End the job by a method of ``Settlement`` (recovered, or moved to the dead set); return
        the dead job, if it became one. If that fails, the delivery stays open."""
        if not self.is_open:
            return None
        dead = way(self.lease, *args)
        self.drop()
        return dead

    def drop(self) -> None:
        """Forget the job, which leaves by another way than an ack; let the loop claim another."""
        if self.is_open:
            self.channel.qos.drop(self.job)
            self.channel.fetch.poller.wake()


class Message(virtual.Message):
    """kombu's message of a claimed job, which knows its delivery."""

    delivery_tag: Any

    def __init__(self, delivery: Delivery) -> None:
        payload = _decode(delivery.lease)
        super().__init__(payload, channel=delivery.channel)
        self.delivery = delivery
        payload["body"] = None  # kombu keeps the payload, and the message has the body already
        # One that cannot be hashed is an error for stock kombu, too: the job goes to the dead set.
        hash(self.delivery_tag)
        # Not the producer's tag: a redelivery, or a job copied by hand, has the same one again.
        self.delivery_tag = delivery.job.claim_id


def _decode(lease: Lease) -> dict[str, Any]:
    """Return the payload of a job as kombu's dict, with what is known of earlier deliveries."""
    message: dict[str, Any] = json.loads(lease.job.payload)
    info = message["properties"]["delivery_info"]
    info["redelivered"] = bool(info.get("redelivered"))  # as stock kombu marks it
    headers = message["headers"] = message.get("headers") or {}
    headers.pop(DELIVERY, None)  # a producer cannot forge what the transport says
    if lease.counters is not None:
        mark_redelivered(message)
        message["headers"][DELIVERY] = lease.counters.as_header()
    return message


def delivery_of(message: Any) -> Delivery | None:
    """Return the delivery behind kombu's message; None for what is not fetched reliably."""
    return message.delivery if isinstance(message, Message) else None


class QoS:
    """The messages of a channel that are not settled, and how many jobs it may claim.

    kombu makes one for each channel and calls the methods that kombu's own ``virtual.QoS`` has:
    ``append`` for broadcasts, ``ack`` and ``reject`` for each settled message, ``restore_unacked``
    for a recovery, ``restore_unacked_once`` at each close (a channel may be closed twice) and at
    the exit of the process. The fetch loop calls ``credit``. If the process dies, nothing of this
    is needed: the same jobs are in the owner's private list.
    """

    prefetch_count = 0  # set by kombu; 0: no limit

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.unsettled: dict[Any, Any] = {}  # delivery tag -> message
        #: Requeues the jobs of a channel that is still open at the exit of the process.
        self.at_exit = Finalize(self, self.restore_unacked_once, exitpriority=1)

    def in_use(self) -> int:
        """Return how many jobs count against the prefetch: those that the consumer has (``_held``),
        and those that wait in the backlog for their delivery."""
        fetch = self.channel._fetch
        return self._held() + (0 if fetch is None else len(fetch.backlog))

    def _held(self) -> int:
        """Return how many jobs the consumer has, with those that still run although their channel
        is closed: if they did not count, jobs would be reserved behind them."""
        fetch = self.channel._fetch
        return len(self.unsettled) + (0 if fetch is None else fetch.owner.leases.detached_count)

    def can_consume(self) -> bool:
        """Return whether kombu may read a message by BRPOP, from a queue without acks. Celery's
        worker puts a function of its own in the place of this one (``worker_disable_prefetch``)."""
        return not self.prefetch_count or self.in_use() < self.prefetch_count

    def credit(self) -> Credit:
        """Return how many jobs the fetch loop may claim now."""
        limit, held = self.prefetch_count, self._held()
        counts_slots = "can_consume" in self.__dict__
        is_unlimited = not (limit or counts_slots)
        return Credit(self._room(held, is_unlimited, counts_slots), held, limit, is_unlimited)

    def _room(self, held: int, is_unlimited: bool, counts_slots: bool) -> int:
        fetch = self.channel.fetch
        if fetch.owner.stopping:
            return 0
        backlog_count = len(fetch.backlog)
        if counts_slots:
            # Celery's function says whether a slot is free, not how many: so one job at a time.
            return int(not backlog_count and bool(self.can_consume()))
        if is_unlimited:
            # One at a time, as stock does: the first of two consumers would claim the whole queue.
            return int(not backlog_count)
        limit: int = fetch.owner.config.claim_limit
        return max(0, min(limit, self.prefetch_count - held - backlog_count))

    def receive(self, lease: Lease) -> Message | None:
        """Return the message in a payload, which is unsettled from now on; None if it holds no
        message and was moved to the dead set."""
        try:
            message = Message(Delivery(lease, self.channel))
            self.append(message, message.delivery_tag)
            return message
        except MemoryError:  # not the fault of the payload
            raise
        except Exception:  # a payload may raise any error in a parser, and must not end the worker
            self.channel.owner.settlement.quarantine(lease)
            return None

    def append(self, message: Any, delivery_tag: Any) -> None:
        self.unsettled[delivery_tag] = message

    def get(self, delivery_tag: Any) -> Any:
        return self.unsettled[delivery_tag]

    def delivery(self, delivery_tag: Any) -> Delivery | None:
        """Return what was delivered; None when it is settled, or was no claim (fanout)."""
        return delivery_of(self.unsettled.get(delivery_tag))

    def drop(self, job: Job) -> None:
        """Forget a job; its room counts as free."""
        self.unsettled.pop(job.claim_id, None)

    def ack(self, delivery_tag: Any) -> None:
        delivery = delivery_of(self.unsettled.pop(delivery_tag, None))
        if delivery is not None:
            delivery.ack()

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        if not requeue:
            return self.ack(delivery_tag)
        delivery = self.delivery(delivery_tag)
        if delivery is not None:
            return delivery.requeue("back")
        message = self.unsettled.get(delivery_tag)
        if message is not None and not self._is_broadcast(message):
            # A read had taken it from a queue without acks when that was cancelled.
            virtual.Channel._restore(self.channel, message)
        self.ack(delivery_tag)

    def _is_broadcast(self, message: Any) -> bool:
        exchange = message.delivery_info.get("exchange")
        return bool(self.channel.typeof(exchange).type == "fanout")

    def _in_hand(self) -> list[Lease]:
        """Return the leases of jobs that were delivered and not settled, the newest first."""
        deliveries = map(delivery_of, reversed(list(self.unsettled.values())))
        return [delivery.lease for delivery in deliveries if delivery is not None]

    def restore_unacked(self, client: Any = None) -> list[Any]:
        """Requeue the jobs that were delivered and do not run; return no errors. A job that runs
        stays with its owner, and its ack is sent without this channel."""
        if not (back := self._in_hand()):
            return []
        fetch, owner = self.channel.fetch, self.channel.owner
        owner.leases.close(back)
        fetch.poller.wake()
        if given := sum(not lease.runs for lease in back):
            logger.info("Channel closed: requeued %s.", number(given, "job"))
        for lease in back:
            if not lease.runs:  # also where the requeue could not be sent yet: it is pending
                self.drop(lease.job)
        return []

    def requeue_waiting(self) -> int:
        """Requeue, at once and in order, the jobs that the consumer has not seen, or not started;
        return how many. Those can no longer start. Any thread may call this."""
        fetch = self.channel.fetch
        unseen = fetch.requeue_unseen()
        back = fetch.owner.leases.requeue_waiting(self._in_hand())
        for lease in back:
            self.drop(lease.job)
        return unseen + len(back)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Requeue as ``restore_unacked``. kombu calls this at each close; nothing it does may fail
        the second time, and it raises nothing at exit."""
        self.at_exit.cancel()
        if self.channel.do_restore:
            self.restore_unacked()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. kombu's poller calls this to requeue jobs after the visibility timeout; here
        the reaper knows which owner is dead."""
