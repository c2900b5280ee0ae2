"""The fetch loop of one channel: in each tick of kombu's event loop it decides whether to send what
is pending, to claim jobs, or to wait for them with blocking reads.

The poller calls ``tick`` in each round of kombu's loop, and ``deliver`` for each claimed job. The
channel calls the rest (``basic_get``, a cancelled consumer, its close). The QoS and its deliveries
call ``requeue`` and, also for the worker's stop, ``requeue_unseen`` from any thread. Four words:

- A job has *landed* when a blocking read has moved it to a landing list of this owner on the
  server, from a queue that was empty. It has no claim yet; the next claim takes it from there.
- The *queues are empty* when the last claim got fewer jobs than it asked for. Then nothing is
  claimed until a blocking read brings a job, or the connection for the other queue lists
  (``store/key_tracking.py``) reports one. Queues that cannot be waited on so are claimed from once
  a second.
- From a *paused* queue nothing is claimed, and no read waits on its lists. The claim script checks
  that on the server. Heartbeats, and claims that meet such a queue, report it to the owner.
- The owner *needs a reconcile* once a reply was lost: its private list (its claims, on the server)
  may have jobs that this process does not know. ``Owner.reconcile`` requeues them.

If the process dies, this memory is lost, and the jobs are not: claimed jobs are in the owner's
private list, landed jobs in its landing lists, and the reaper requeues both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from threading import get_ident
from time import monotonic, sleep
from typing import Any

from kombu.log import get_logger
from redis.exceptions import RedisError, ResponseError

from ...model.log_text import one_line_each
from ...owner.in_flight.lease import Lease
from ...owner.owner import Owner
from ...store.redis.connections import NotServed
from ...store.redis.slots import SEARCH_PAUSE_S
from .backlog import Backlog, Landed
from .blocking_reads import COMPLAINT_INTERVAL, BlockingReads
from .credit import Credit
from .probation import Probation
from .queue_lists import POLL_INTERVAL, QueueLists
from .upkeep import Upkeep

logger = one_line_each(get_logger(__name__))

#: Seconds of waiting after which a job that a read brings counts as single. If it comes sooner, it
#: may be one of many, and a claim asks for the others. If a later one was not single, the next read
#: brings another one at once.
AT_ONCE = 0.05


class Action(Enum):
    """The action of a tick."""

    STOP = "requeue the jobs that have not started: the worker is stopping"
    SOLO = "let a job on probation have its solo run, or end that"
    CLAIM = "claim jobs; the same round trip sends what is pending"
    SEND = "send what is pending: acks, requeues, starts"
    BLOCK = "wait for jobs with blocking reads"
    WAIT = "nothing"


class FetchLoop:
    """The claims of one channel while its queues have jobs, and its blocking reads while they are
    empty."""

    #: When queues that are empty and cannot be waited on are claimed from again (monotonic s).
    _next_look = 0.0
    _refused_until = 0.0  # until then the server, which refused, is not asked again (monotonic s)
    _silent_until = 0.0  # until then its refusals are not logged (monotonic s)
    _delivering_thread = 0  # the thread that delivers a job at this moment; 0: none
    #: An exception has ended a claim or a delivery: a claimed job may be missing from this channel.
    may_have_strays = False

    def __init__(
        self,
        owner: Owner,
        poller: Any,
        *,
        lists: Callable[[], QueueLists],
        credit: Callable[[], Credit],
        deliver: Callable[[Lease], bool],
        requeue_waiting: Callable[[Collection[str] | None], int],
        requeue_strays: Callable[[], int],
    ) -> None:
        """
        Arguments:
            lists: returns what the channel consumes at the moment.
            credit: returns how many jobs its consumer may be given.
            deliver: calls the consumer with a job; returns False where the job went elsewhere.
            requeue_waiting: requeues the jobs that were claimed or delivered and not started: all,
                or those of some queue lists.
            requeue_strays: requeues the jobs that were claimed for the channel and that it does not
                have; returns how many.
        """
        self.owner, self.poller, self.executor = owner, poller, owner.executor
        self.backlog = Backlog()
        self.reads = BlockingReads(owner, poller, self._landed)
        self.upkeep = Upkeep(owner, self.reads)
        self.probation = Probation(
            owner,
            self.backlog,
            poller.ring,
            self.requeue_undelivered,
            partial(requeue_waiting, None),
        )
        self._lists, self._credit, self._deliver = lists, credit, deliver
        self._requeue_waiting, self._requeue_strays = requeue_waiting, requeue_strays

    def tick(self) -> None:
        """Carry out the next action. After a refusal of the server (a full disk, too few replicas)
        nothing is sent for ``POLL_INTERVAL``; lost connections raise."""
        self.executor.pump()
        now = monotonic()
        if now < self._refused_until:
            return
        try:
            self._requeue_strays_if_any()
            lists = self._lists()
            # Leases from queues that are consumed no more have to be settled, too.
            if lists.names or self.owner.name:
                self.upkeep.register(lists.expires)
                self.upkeep.repair()
            self._follow_pauses()
            self._carry_out(self._action(lists), lists)
            self.owner.leases.release_idle_connection()
        except NotServed as exc:
            logger.info("Claims and acks move to another Redis server: %s.", exc)
            sleep(SEARCH_PAUSE_S)  # the move of the cluster slot may take a while
            self.poller.ring()
        except ResponseError as exc:
            # A refusal is mostly temporary. If the worker ended, its next start would meet the same
            # refusal.
            self._refused_until = now + POLL_INTERVAL
            if now >= self._silent_until:
                self._silent_until = now + COMPLAINT_INTERVAL
                logger.error(
                    "Redis refuses claims and acks: %s. Running jobs continue and no job is "
                    "lost. Tried again every %g s. Check its disk, memory and replicas.",
                    exc,
                    POLL_INTERVAL,
                )
        except BaseException:
            self.may_have_strays = True
            raise

    def _requeue_strays_if_any(self) -> None:
        """Requeue the jobs that an exception (a signal handler that raises, the end of a greenlet)
        has taken from a claim or a delivery of this channel. Within a delivery do nothing, since
        the channel may not have its job yet: a later tick does it."""
        if not self.may_have_strays or self._delivering_thread:
            return
        self.may_have_strays = False
        if requeued_count := self._requeue_strays():
            logger.info(
                "Jobs requeued without a strike (jobs=%d, owner=%s): an exception had interrupted "
                "their delivery.",
                requeued_count,
                self.owner.name,
            )

    def next_action(self) -> Action:
        """Return what the next tick does, for tests. This has no effect."""
        return self._action(self._lists())

    def _action(self, lists: QueueLists) -> Action:
        if not lists.names:
            return Action.SEND
        if self.owner.stopping:
            return Action.STOP
        if self.probation.is_due(lists.open_names):
            return Action.SOLO
        return self._action_without_suspects()

    def _action_without_suspects(self) -> Action:
        if self.backlog.landed or self._should_claim():
            return Action.CLAIM
        if self._next_start_sends:
            return Action.WAIT
        if self.owner.leases.unsent or (self.owner.leases.unread and not self.backlog.ready):
            return Action.SEND
        return Action.BLOCK if self._should_block() else Action.WAIT

    def _should_claim(self) -> bool:
        """Return whether it is time to claim.

        If this thread may run the jobs itself, that is when no job waits in the backlog. Otherwise
        it is when as many jobs may be claimed as wait in this process already, in the backlog or
        for a slot of the pool. So claims are few and large, and there are still jobs here for the
        slots that become free meanwhile.
        """
        waiting = len(self.backlog)
        limit = self.owner.config.claim_limit
        if not self._lists().open_names:
            return False
        if waiting >= limit or (waiting and self.poller.inline) or self._queues_are_empty:
            return False
        credit = self._credit()
        if not credit.room:
            return False
        if credit.is_unlimited:
            return not waiting
        all_waiting = waiting + min(credit.held, self.executor.waiting_count())
        return credit.room >= min(all_waiting, limit)

    def _should_block(self) -> bool:
        """Return whether to wait for jobs with blocking reads. It is False before a job starts in
        this thread, since all reads would have to be called off for that."""
        if self._next_start_sends or not self._lists().open_names or not self._queues_are_empty:
            return False
        return bool(self._credit().room)

    @property
    def _next_start_sends(self) -> bool:
        """True if this thread starts a job next, in a solo pool. What is pending goes with its
        start record, so that no send is made before."""
        return self.executor.inline and bool(self.backlog.ready)

    @property
    def _queues_are_empty(self) -> bool:
        """True if the queues were empty at the last claim, and a job that comes to any of them is
        reported."""
        if not self.reads.queues_are_empty:
            return False
        return monotonic() < self._next_look or self.reads.cover(self._lists().open_names)

    def _follow_pauses(self) -> None:
        """Take over which queues are paused. The reads on their lists end, and their jobs that have
        not started are requeued, in their order. If a queue was resumed, the next claim looks at
        it."""
        lists, paused = self._lists(), self.owner.paused
        if lists.paused == paused:
            return
        open_before = {*lists.open_names}
        if closed := {name for name in open_before if lists.queue(name) in paused}:
            # The reads end first: a job that a read brought later would be requeued in front of
            # the others.
            self.reads.leave_lists(closed)
            self._requeue_waiting(closed)
        # Last: if a call above fails, the next tick repeats it.
        lists.set_paused(paused)
        if not open_before.issuperset(lists.open_names):
            self.reads.queues_are_empty = False

    def _carry_out(self, action: Action, lists: QueueLists) -> None:
        if action is Action.STOP:
            # The reads end before the jobs that wait are requeued: a job that a read brought later
            # would be requeued in front of them.
            self.requeue_undelivered()
            self._requeue_waiting(None)
            return self.owner.leases.flush()
        if action is Action.SOLO:
            self.probation.act(lists.open_names, self.reads.queues_are_empty)
            if self.probation.excludes_others:
                return self._send_during_solo_run()
            action = self._action_without_suspects()
        if action is Action.CLAIM:
            self._claim(self._credit().room)
        elif action is Action.SEND:
            if not lists.names:
                return self.owner.leases.flush()
            self.owner.leases.post()
        # A claim that finds the queues empty is followed by the wait in the same tick.
        if action is not Action.WAIT and self._should_block():
            each_job_ends_all_reads = self.executor.inline or self._credit().limit == 1
            self.reads.wait_on(lists, by_one=each_job_ends_all_reads)

    def _send_during_solo_run(self) -> None:
        self.reads.queues_are_empty = False  # the first claim after the solo run looks at them
        job_before = self.owner.suspects.solo
        self.owner.leases.flush()
        if job_before is not None and self.owner.suspects.solo is None:  # its ack was sent
            self.poller.ring()

    def _claim(self, room: int) -> None:
        """Claim the jobs that have landed and, if the queues are not known to be empty, up to
        ``room`` jobs from all queue lists. After a lost reply the owner needs a reconcile."""
        backlog, name, lists = self.backlog, self.owner.name, self._lists()
        landed_by_owner = backlog.take_landed()
        of_name = landed_by_owner.pop(name, [])
        # Of a list that is not open the claim takes none. Its consumer was cancelled, and an
        # exception has interrupted the cancel after the job had landed.
        own_landed = [job for job in of_name if lists.is_open(job.queue_list)]
        if closed := [job for job in of_name if not lists.is_open(job.queue_list)]:
            landed_by_owner[name] = closed
        landed = [job.queue_list for job in own_landed]
        brought = {job.queue_list: job.payload for job in own_landed}
        most = room + len(landed)
        only_landed = self._queues_are_empty
        order = landed if only_landed else lists.order()
        fairness_width = 0 if only_landed else lists.fairness_width
        starts = max(0, self.executor.free() - len(backlog.ready))
        try:
            # Jobs that have landed for an owner which the server no longer knows cannot be
            # claimed: they are requeued.
            self._return_landed(landed_by_owner)
            claims, leases = self.owner.claim(
                order, most, fairness_width, landed, starts, brought, backlog=backlog
            )
        except BaseException:  # also the end of a greenlet, and what a signal handler raises
            self.owner.leases.needs_reconcile = True  # it requeues what has landed
            raise
        # At once: a call below may fail or be interrupted, and no reconcile finds jobs that have a
        # lease.
        backlog.ready.extend(leases)
        if not claims.registered or name != self.owner.name:
            self._return_landed({name: own_landed})
        if not claims.registered:
            return  # nothing was claimed: something removes the owner's record again and again
        for queue_list, text in claims.errors:
            self.reads.note_refusal(queue_list, text)
        if claims.paused:
            self._return_landed(
                {name: [job for job in own_landed if job.queue_list in claims.paused]}
            )
            self.owner.paused |= {lists.queue(queue_list) for queue_list in claims.paused}
            self._follow_pauses()
        if only_landed:
            return  # this claim says nothing about the queues
        for lease in leases:
            lists.note_claimed(lease.job.queue_list)
        self.reads.record_jobs({lease.job.queue_list for lease in leases})
        self._next_look = monotonic() + POLL_INTERVAL
        self.reads.queues_are_empty = claims.fell_short(most)

    def claim_one(self, lists: Mapping[str, int]) -> Lease | None:
        """Return the lease of one job of these lists now, or None; a job of the backlog comes
        first. ``basic_get`` calls this, and delivers the job."""
        self._requeue_strays_if_any()
        self.upkeep.register({**self._lists().expires, **lists})
        self.upkeep.repair()
        self.probation.act([*lists], queues_are_empty=True)
        self.reads.call_off([read for read in self.reads.armed if read.queue_list in lists])
        if any(landed.queue_list in lists for landed in self.backlog.landed):
            self._claim(0)
        for lease in [lease for lease in self.backlog.ready if lease.job.queue_list in lists]:
            self.backlog.ready.remove(lease)
            if not self._requeue_if_former(lease):
                return lease
        if not self._may_claim:
            # No claim follows that would send what is pending. In a process that only calls
            # ``basic_get`` nothing else does: neither the requeues of refused jobs, nor the ack
            # that ends a solo run.
            self.owner.leases.flush()
            if not self._may_claim:
                return None
        claims, leases = self.owner.claim([*lists], 1, 1, backlog=self.backlog)
        if leases:
            return leases[0]
        for name, text in claims.errors:
            raise ResponseError(f"queue list {name}: {text}")
        return None

    @property
    def _may_claim(self) -> bool:
        return not (self.probation.excludes_others or self.owner.has_many_refused)

    def _requeue_if_former(self, lease: Lease) -> bool:
        """Requeue a job that was claimed under an earlier name of this owner, under which it cannot
        be acked; return whether it was."""
        if lease.job.owner == self.owner.name:
            return False
        self.owner.leases.requeue([lease])
        return True

    @property
    def deliverable(self) -> bool:
        """True if a job is ready to be delivered."""
        return bool(self.backlog.ready) and not self.owner.stopping

    def deliver(self) -> bool:
        """Deliver one job to the consumer; return False where none was delivered."""
        if armed := self.reads.armed:
            credit = self._credit()
            # Reads are called off for two reasons. A job that lands while the callback runs a job
            # in this thread has to wait for the end of that run, and in a solo pool nothing could
            # requeue it meanwhile: there no read may wait. Otherwise a job may land for which the
            # prefetch has no room: only as many reads may wait as there is room for jobs.
            if self.poller.inline or not (credit.room or credit.is_unlimited):
                left_waiting = 0 if self.executor.inline else credit.room
                self.reads.call_off(armed[left_waiting:])
        before, self._delivering_thread = self._delivering_thread, get_ident()
        try:
            try:
                lease = self.backlog.ready.popleft()
            except IndexError:  # another thread requeued it a moment ago: the process is stopping
                return False
            if self._requeue_if_former(lease):
                return False
            delivered = self._deliver(lease)
        except BaseException:
            self.may_have_strays = True
            raise
        finally:
            self._delivering_thread = before  # a consumer's callback may drain events itself
        self.owner.leases.delivered(lease)
        # In a solo pool the start record of a job takes the pending acks along. If the job did not
        # begin, they are sent now.
        if self.executor.inline and self.owner.leases.unsent:
            # A refusal, also of an ack that was sent before, would end the worker here, outside of
            # a tick, and the job of that ack would run again with a strike. What was refused is
            # pending again, and the next tick reports the refusal.
            with suppress(ResponseError):
                self.owner.leases.post()
        return delivered

    @property
    def delivers_the_last(self) -> bool:
        """True within the delivery of the last job that was ready: its consumer's callback acks it,
        say, in the same thread."""
        return self._delivering_thread == get_ident() and not self.backlog.ready

    def _landed(self, landed: Landed, waited_s: float) -> None:
        """Take over a job that a blocking read has brought: the next claim takes it from its
        landing list. Requeue it if there is no room for it any more, its queue is paused, or its
        consumer was cancelled (an exception that interrupts the cancel leaves the read waiting)."""
        is_open = self._lists().is_open(landed.queue_list)
        if landed.owner != self.owner.name or not is_open or not self._credit().room:
            return self.owner.return_landed(landed.owner, [landed.queue_list])
        may_be_one_of_many = bool(self.backlog) or waited_s < AT_ONCE
        self.backlog.landed.append(landed)
        if may_be_one_of_many:
            self.reads.queues_are_empty = False

    def _return_landed(self, landed_by_owner: Mapping[str, Iterable[Landed]]) -> None:
        for owner_name, some in landed_by_owner.items():
            self.owner.return_landed(owner_name, [landed.queue_list for landed in some])

    def requeue(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Requeue jobs, and wake the loop, whose next tick may claim others. If the server cannot
        be reached now, the next send carries the requeues. Any thread may call this."""
        self.owner.leases.requeue(leases, where)
        self.poller.wake()

    def requeue_undelivered(self) -> None:
        """Call off all reads, and requeue the jobs that have landed, or were claimed, and were not
        delivered."""
        self.reads.call_off(self.reads.armed)
        self.requeue_unseen()

    def requeue_unseen(self, lists: Collection[str] | None = None) -> int:
        """Requeue the jobs that the consumer has not received, all or those of some lists: first
        those that have landed, then the claimed ones, which are older and so come in front of them.
        Return the number of the claimed ones. Any thread may call this."""
        self._return_landed(self.backlog.take_landed(lists))
        # mostly none: it is called for each closed queue
        if claimed := self.backlog.take_ready(lists):
            self.requeue(claimed)
        return len(claimed)

    def cancel(self, lists: Collection[str] | None = None) -> None:
        """End the reads on some lists (None: on all), and requeue the jobs from there that were not
        delivered: they have no consumer any more. An error of the server is not raised."""
        reads = [r for r in self.reads.armed if lists is None or r.queue_list in lists]
        try:
            self.reads.call_off(reads)
        except (RedisError, OSError):
            self.owner.leases.needs_reconcile = True
        self.reads.close(None if lists is None else reads)
        self.requeue_unseen(lists)
