"""The jobs that consumers have: a delivery of each, the ways in which it may leave, and how many a
channel may have.

The fetch loop of a channel has its ``QoS`` deliver each claimed job to the channel's consumer.

kombu calls ``QoS``, once for each message that is acked or rejected, and when the channel closes.
The worker calls ``Delivery``: a request that ends acks it, and a job that cannot run leaves by
``end_by``. They do so in the thread of the consumer's loop, and in a pool's threads and greenlets
for the jobs that end there. If the process dies, each job that was not acked on the server is in
the owner's private list there; a reaper recovers it, and it runs again.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

celery worker.
    count the free slots where Celery does: consumer.tasks:Tasks.can_consume>=5.6
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils import json
from redis.exceptions import ResponseError

from ..model.humanize import number
from ..model.job import DELIVERY, Job
from ..model.log_text import one_line_each
from ..model.outage import Outage
from ..owner.in_flight.pending import REFUSED_INTERVAL
from ..owner.owner import REFUSED_MAX
from .fetch.credit import Credit

if TYPE_CHECKING:
    from ..model.dead_job import DeadJob
    from ..owner.in_flight.lease import Lease
    from ..owner.owner import Owner

logger = one_line_each(get_logger(__name__))


def mark_redelivered(message: dict[str, Any]) -> None:
    """Mark a decoded message as delivered before, in both places where kombu does."""
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
        """True if the job is not settled yet."""
        return self.channel.qos.delivery(self.job.claim_id) is not None

    def ack(self) -> None:
        """Ack the job. If the process dies before the ack is sent, the job runs again.

        The ack waits for the loop's next tick, which sends it with others. It is sent at once in
        three cases: if no tick comes by itself (``Poller.ticks_by_itself``), if the channel fetches
        no more, and in the callback of the last job that was ready, since no claim follows soon
        that would take the ack along.
        """
        channel, fetch, owner = self.channel, self.channel.fetch, self.owner
        channel.qos.drop(self.job)
        owner.leases.ack(self.lease)
        # If the channel fetches no more, no later tick would read the reply.
        waits_for_reply = channel.closed or not channel.consumes
        if waits_for_reply or not fetch.poller.ticks_by_itself or fetch.delivers_the_last:
            try:
                owner.leases.flush(wait=waits_for_reply)
            except (*channel.connection_errors, channel.ResponseError) as exc:
                logger.warning(
                    "The ack of job %s could not be sent yet (%s). It is sent again; if this "
                    "process dies first, the job runs again.",
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

    def end_by(self, method: Callable[..., DeadJob | None], *args: Any) -> DeadJob | None:
        """End the job by a method of ``Settlement`` (``method``), which recovers it or moves it to
        the dead set; return the dead job, if it became one. If that fails, the delivery stays
        open. If it was dropped then, since the run has ended (``worker/settling.py``), a later call
        ends the job, unless the job has left by another way."""
        if not (self.is_open or self.lease.runs):
            return None
        dead = method(self.lease, *args)
        self.drop()
        if dead is not None:
            self.channel.qos.note_moved()
        return dead

    def requeue_refused(self, refusal: ResponseError) -> None:
        """Requeue the job, which has not run, after a pause: the server has refused to move it."""
        if self.is_open:
            self.drop()
            self.channel.qos.requeue_refused(self.lease, refusal)

    def drop(self) -> None:
        """Forget the job, which leaves by another way than an ack; wake the loop, which may claim
        another one."""
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
    """Return the payload of a job as kombu's dict, with the job's history."""
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
    """Return the delivery of kombu's message; None for a message that was not claimed."""
    return message.delivery if isinstance(message, Message) else None


class QoS:
    """The messages of a channel that are not settled, and how many jobs it may claim.

    kombu makes one for each channel and calls the methods that kombu's own ``virtual.QoS`` has:
    ``append`` for broadcasts, ``ack`` and ``reject`` for each settled message, ``restore_unacked``
    for a recovery, ``restore_unacked_once`` at each close (a channel may be closed twice) and at
    the exit of the process. The fetch loop calls ``credit``, ``deliver``, ``requeue_waiting`` (as
    the worker's stop does) and ``requeue_strays`` (as the channel's close does). All of this is in
    memory alone: if the process dies, the same jobs are in the owner's private list.
    """

    prefetch_count = 0  # set by kombu; 0: no limit

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.unsettled: dict[Any, Any] = {}  # delivery tag -> message
        #: The time in which the server refuses to move claimed jobs to the dead set or to
        #: probation. ``worker/unknown_tasks.py`` reads it. It expires, since another worker may
        #: have moved the jobs that were refused here.
        self.refusals = Outage(logger, expires_s=3 * REFUSED_INTERVAL)
        #: Calls ``restore_unacked_once`` if the channel is still open at the exit of the process.
        self.at_exit = Finalize(self, self.restore_unacked_once, exitpriority=1)

    def in_use(self) -> int:
        """Return how many jobs count against the prefetch: those that the consumer has (``_held``),
        and those that wait in the backlog for their delivery."""
        fetch = self.channel._fetch
        return self._held() + (0 if fetch is None else len(fetch.backlog))

    def _held(self) -> int:
        """Return how many jobs the consumer has, with those that still run although their channel
        is closed. If those did not count, further jobs would be claimed and wait for their slots,
        while other workers are idle."""
        fetch = self.channel._fetch
        return len(self.unsettled) + (0 if fetch is None else fetch.owner.leases.detached_count)

    def can_consume(self) -> bool:
        """Return whether kombu may read a message by BRPOP, from a queue without acks. Celery's
        worker puts a function of its own in the place of this one (``worker_disable_prefetch``)."""
        return not self.prefetch_count or self.in_use() < self.prefetch_count

    def credit(self) -> Credit:
        """Return how many jobs the fetch loop may claim now."""
        limit, held = self.prefetch_count, self._held()
        # True if Celery's worker has put its own function in the place of the method.
        counts_slots = "can_consume" in self.__dict__
        is_unlimited = not (limit or counts_slots)
        return Credit(self._room(held, is_unlimited, counts_slots), held, limit, is_unlimited)

    def _room(self, held: int, is_unlimited: bool, counts_slots: bool) -> int:
        fetch = self.channel.fetch
        if fetch.owner.stopping or fetch.owner.has_many_refused:
            return 0
        backlog_count = len(fetch.backlog)
        if counts_slots:
            # Celery's function says whether a slot is free, not how many: so one job at a time.
            return int(not backlog_count and bool(self.can_consume()))
        if is_unlimited:
            # One job at a time, as stock kombu does. Otherwise the first of two consumers would
            # claim the whole queue.
            return int(not backlog_count)
        limit: int = fetch.owner.config.claim_limit
        return max(0, min(limit, self.prefetch_count - held - backlog_count))

    def deliver(self, lease: Lease) -> bool:
        """Call the consumer with a claimed job. Return False if the job was requeued, or settled by
        the channel's intake (to the dead set, to probation, or parked) instead. If the server
        refuses that, the job is requeued after a pause. If something else fails before the call,
        the job stays in the backlog, and the error is raised."""
        channel = self.channel
        consumer = channel.consumer_of(lease.job.queue_list)
        if consumer is None:  # it was cancelled after the claim
            channel.fetch.requeue([lease])
            return False
        try:
            message = None if self._apply_limits(lease) else self.receive(lease)
        except BaseException:  # also the end of a greenlet, and what a signal handler raises
            # The close of the channel requeues the jobs of the backlog. A job that is not there
            # would stay claimed, and never run.
            channel.fetch.backlog.ready.appendleft(lease)
            raise
        if message is None or channel.intake.park_if_due_later(message):
            return False
        try:
            consumer(message)
        except BaseException as exc:
            if isinstance(exc, Exception) and channel.intake.reject_unreadable(message, exc):
                return True
            # The consumer has the job: a thread of the consumer may run it, and ack it.
            channel.owner.leases.delivered(lease)
            raise
        return True

    def _apply_limits(self, lease: Lease) -> bool:
        """Return whether the channel's intake has settled a job, or was to settle it and the server
        refused that: the job is requeued after a pause then."""
        try:
            is_settled = self.channel.intake.apply_limits(lease, self.channel)
        except ResponseError as exc:
            self.requeue_refused(lease, exc)
            return True
        if is_settled:
            self.note_moved()
        return bool(is_settled)

    def requeue_refused(self, lease: Lease, refusal: ResponseError) -> None:
        """Requeue, after a pause, a job that the server has refused to move (it is full, say, or a
        key has another type). If the refusal were raised, it would end the worker. The job would be
        the first of its queue again, and end the next worker. If it were deferred, the job would
        keep its place in the prefetch, and with enough such jobs no other one would be claimed."""
        leases = self.channel.owner.leases
        leases.requeue_later(lease)
        self.refusals.failed(
            "Job %s could not be moved to the dead set or put on probation (%s): it is requeued "
            "without a strike in %g s, as other such jobs are (jobs=%d). Other jobs continue; none "
            "is claimed while %d such jobs wait. Check the keys, memory, disk and replicas of "
            "Redis.",
            lease.job.title,
            refusal,
            REFUSED_INTERVAL,
            leases.refused_count,
            REFUSED_MAX,
        )

    def note_moved(self) -> None:
        """Note that the server has moved a job to the dead set or to probation. Its refusals have
        ended if no refused job waits for its requeue."""
        if self.refusals.lasts and not self.channel.owner.leases.refused_count:
            self.refusals.ended("Redis accepts moves to the dead set and to probation")

    def receive(self, lease: Lease) -> Message | None:
        """Return the message in a payload, which is unsettled from now on; None if it holds no
        message: the job is moved to the dead set, or requeued after a pause if the server refuses
        that."""
        try:
            message = Message(Delivery(lease, self.channel))
            self.append(message, message.delivery_tag)
            return message
        except MemoryError:  # not the fault of the payload
            raise
        except Exception:  # a payload may raise any error in a parser, and must not end the worker
            try:
                if self.channel.owner.settlement.kill_unparseable(lease):
                    self.note_moved()
            except ResponseError as exc:
                self.requeue_refused(lease, exc)
            return None

    def append(self, message: Any, delivery_tag: Any) -> None:
        self.unsettled[delivery_tag] = message

    def get(self, delivery_tag: Any) -> Any:
        return self.unsettled[delivery_tag]

    def delivery(self, delivery_tag: Any) -> Delivery | None:
        """Return the delivery of a tag; None if it is settled, or the message was not claimed (a
        broadcast)."""
        return delivery_of(self.unsettled.get(delivery_tag))

    def drop(self, job: Job) -> None:
        """Forget a job, which no longer counts against the prefetch."""
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
        if message is not None and not self.channel.is_broadcast(
            message.delivery_info.get("exchange")
        ):
            # A BRPOP had brought the message when its consumer, which wants no acks, was cancelled.
            self.channel.put_back(message)
        self.ack(delivery_tag)

    def _in_hand(self) -> list[Lease]:
        """Return the leases of jobs that were delivered and not settled, the newest first."""
        deliveries = map(delivery_of, reversed(list(self.unsettled.values())))
        return [delivery.lease for delivery in deliveries if delivery is not None]

    def restore_unacked(self, client: Any = None) -> list[Any]:
        """Requeue the jobs that were delivered and do not run; return no errors. A job that runs
        stays with its owner, and its ack is sent without this channel."""
        if not (requeued := self._in_hand()):
            return []
        fetch, owner = self.channel.fetch, self.channel.owner
        owner.leases.close(requeued)
        fetch.poller.wake()
        if waiting_count := sum(not lease.runs for lease in requeued):
            logger.info("Channel closed: requeued %s.", number(waiting_count, "job"))
        for lease in requeued:
            if not lease.runs:  # also where the requeue could not be sent yet: it is pending
                self.drop(lease.job)
        return []

    def requeue_waiting(self, lists: Collection[str] | None = None) -> int:
        """Requeue, at once and in order, the jobs that the consumer has not received, and those
        that it has not started, all or those of some queue lists; return how many. They can no
        longer start. Any thread may call this."""
        fetch = self.channel.fetch
        unseen = fetch.requeue_unseen(lists)
        in_hand = self._in_hand()
        if lists is not None:
            in_hand = [lease for lease in in_hand if lease.job.queue_list in lists]
        requeued = fetch.owner.leases.requeue_waiting(in_hand)
        for lease in requeued:
            self.drop(lease.job)
        return unseen + len(requeued)

    def requeue_strays(self) -> int:
        """Requeue the jobs that were claimed for this channel and that it does not have; return how
        many. Call it in the thread of the consumer's loop, outside of claims and deliveries."""
        fetch = self.channel.fetch
        backlog = fetch.backlog
        known = {*list(backlog.ready), *self._in_hand()}
        return int(fetch.owner.leases.requeue_strays(backlog, known))

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Requeue as ``restore_unacked``. kombu calls this at each close, so a second call must do
        no harm."""
        self.at_exit.cancel()
        if self.channel.do_restore:
            self.restore_unacked()

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing. kombu's poller calls this to requeue jobs after the visibility timeout. This
        package has none: a reaper requeues the jobs of an owner that is dead."""
