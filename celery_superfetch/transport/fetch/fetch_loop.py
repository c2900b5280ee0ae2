"""The fetch loop of one channel: in each tick of kombu's event loop it decides whether to send what
is pending, to claim jobs, or to wait for them with blocking reads.

The poller calls ``tick`` whenever kombu's loop comes by, and ``deliver`` for each claimed job; the
channel calls the rest (``basic_get``, a cancelled consumer, its close); the QoS and the worker's
stop call ``requeue_unseen`` from any thread. Three words:

- A job has *landed* when a blocking read has moved it to a landing list of this owner on the
  server, from a queue that was empty. It has no claim yet; the next claim names it.
- The *queues are empty* when the last claim got fewer jobs than it asked for. Nothing is claimed
  then until a blocking read, or key tracking, reports a job.
- The owner is *in doubt* once a reply was lost: its private list may have claims that this process
  does not know. ``Owner.reconcile`` requeues them.

If the process dies, what is lost here is known to the server: claimed jobs are in the owner's
private list, landed jobs in its landing lists, and the reaper requeues both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from threading import get_ident
from time import monotonic, sleep
from typing import Any

from kombu.log import get_logger
from redis.exceptions import RedisError, ResponseError

from ...model.log_text import one_line_each
from ...owner.in_flight.lease import Lease
from ...owner.owner import Owner
from ...store.redis.connections import NotServed
from ...store.redis.slots import PAUSE
from .backlog import Backlog, Landed
from .credit import Credit
from .probation import Probation
from .queue_lists import POLL_INTERVAL, QueueLists
from .reads import COMPLAINT_INTERVAL, BlockingReads
from .upkeep import Upkeep

logger = one_line_each(get_logger(__name__))

#: Seconds: a job that a read brings sooner may be one of many, and a claim asks for the others. One
#: that comes later is taken to be alone; if there are others, the next read brings one at once.
AT_ONCE = 0.05


class Action(Enum):
    """What a tick does."""

    STOP = "requeue the jobs that have not started: the worker is stopping"
    SOLO = "let a job on probation have its solo run, or end that"
    CLAIM = "claim jobs; the same round trip sends what is pending"
    SEND = "send what is pending: acks, requeues, starts"
    BLOCK = "wait for jobs with blocking reads"
    WAIT = "nothing"


class FetchLoop:
    """Claims for one channel while its queues have jobs, and waits while they are empty."""

    #: When queues that are empty and cannot be waited on are claimed from again (monotonic s).
    _next_look = 0.0
    _refused_until = 0.0  # until then the server, which refused, is not asked again (monotonic s)
    _silent_until = 0.0  # until then its refusals are not logged (monotonic s)
    _delivering_thread = 0  # the thread that delivers a job at this moment; 0: none

    def __init__(
        self,
        owner: Owner,
        poller: Any,
        *,
        lists: Callable[[], QueueLists],
        credit: Callable[[], Credit],
        deliver: Callable[[Lease], bool],
        requeue_waiting: Callable[[], int],
    ) -> None:
        """
        Arguments:
            lists: returns what the channel consumes at the moment.
            credit: returns how many jobs its consumer may be given.
            deliver: calls the consumer with a job; returns False where the job went elsewhere.
            requeue_waiting: requeues the jobs that were claimed or delivered and not started.
        """
        self.owner, self.poller, self.runner = owner, poller, owner.runner
        self.backlog = Backlog()
        self.reads = BlockingReads(owner, poller, self._landed)
        self.upkeep = Upkeep(owner, self.reads)
        self.probation = Probation(
            owner, self.backlog, poller.ring, self.requeue_undelivered, requeue_waiting
        )
        self._lists, self._credit, self._deliver = lists, credit, deliver
        self._requeue_waiting = requeue_waiting

    def tick(self) -> None:
        """Carry out the next action. After a refusal of the server (a full disk, too few replicas)
        nothing is sent for ``POLL_INTERVAL``; lost connections raise."""
        self.runner.pump()
        now = monotonic()
        if now < self._refused_until:
            return
        try:
            lists = self._lists()
            # Leases from queues that are consumed no more have to be settled, too.
            if lists.names or self.owner.name:
                self.upkeep.register(lists.expires)
                self.upkeep.repair()
            self._carry_out(self._action(lists.names), lists.names)
            self.owner.leases.rest()
        except NotServed as exc:
            logger.info("Claims and acks go to another server: %s.", exc)
            sleep(PAUSE)  # the slot may be on its way for a while
            self.poller.ring()
        except ResponseError as exc:
            # A refusal passes. If the worker ended, it would only meet the same at its next start.
            self._refused_until = now + POLL_INTERVAL
            if now >= self._silent_until:
                self._silent_until = now + COMPLAINT_INTERVAL
                logger.error(
                    "The broker refuses to serve claims and acks: %s. Nothing was lost, running "
                    "jobs go on; it is asked again every %g s.",
                    exc,
                    POLL_INTERVAL,
                )

    def next_action(self) -> Action:
        """Return what the next tick does. This has no effect."""
        return self._action(self._lists().names)

    def _action(self, names: Sequence[str]) -> Action:
        if not names:
            return Action.SEND
        if self.owner.stopping:
            return Action.STOP
        if self.probation.is_due(names):
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

        Where this thread may run jobs, it is when no job waits here. Elsewhere it is when the room
        is at least as large as the number of jobs that wait here, in the backlog or for a slot: so
        claims are few and large, and jobs still wait here for the slots that get free.
        """
        waiting = len(self.backlog)
        limit = self.owner.config.claim_limit
        if waiting >= limit or (waiting and self.poller.inline) or self._queues_are_empty:
            return False
        credit = self._credit()
        if not credit.room:
            return False
        if credit.is_unlimited:
            return not waiting
        reserve = waiting + min(credit.held, self.runner.reserve())
        return credit.room >= min(reserve, limit)

    def _should_block(self) -> bool:
        # Before this thread runs a job, each read would have to be called off.
        if self._next_start_sends or not self._queues_are_empty:
            return False
        return bool(self._credit().room)

    @property
    def _next_start_sends(self) -> bool:
        """True if this thread starts a job next, in a solo pool. What is pending goes with its
        start record, so that no send is made before."""
        return self.runner.inline and bool(self.backlog.ready)

    @property
    def _queues_are_empty(self) -> bool:
        """Whether the queues were found empty, and a job that comes to any of them is reported."""
        if not self.reads.queues_are_empty:
            return False
        return monotonic() < self._next_look or self.reads.cover(self._lists().names)

    def _carry_out(self, action: Action, names: Sequence[str]) -> None:
        if action is Action.STOP:
            # First: a job that a read brings later would overtake those that wait.
            self.requeue_undelivered()
            self._requeue_waiting()
            return self.owner.leases.flush()
        if action is Action.SOLO:
            self.probation.act(names, self.reads.queues_are_empty)
            if self.probation.excludes_others:
                return self._send_during_solo_run()
            action = self._action_without_suspects()
        if action is Action.CLAIM:
            self._claim(self._credit().room)
        elif action is Action.SEND:
            if not names:
                return self.owner.leases.flush()
            self.owner.leases.post()
        # A claim that finds the queues empty is followed by the wait in the same tick.
        if action is not Action.WAIT and self._should_block():
            each_job_ends_all_reads = self.runner.inline or self._credit().limit == 1
            self.reads.wait_on(self._lists(), by_one=each_job_ends_all_reads)

    def _send_during_solo_run(self) -> None:
        self.reads.queues_are_empty = False  # the first claim after the solo run looks at them
        job_before = self.owner.suspects.solo
        self.owner.leases.flush()
        if job_before is not None and self.owner.suspects.solo is None:  # its ack was sent
            self.poller.ring()

    def _claim(self, room: int) -> None:
        """Claim what has landed and, if the queues are not known to be empty, up to ``room`` jobs
        from all queue lists. If the reply is lost, the owner is in doubt."""
        backlog, name, lists = self.backlog, self.owner.name, self._lists()
        landed_by_owner = backlog.lift()
        own_landed = landed_by_owner.pop(name, [])
        landed = [one.queue_list for one in own_landed]
        brought = {one.queue_list: one.payload for one in own_landed}
        most = room + len(landed)
        only_landed = self._queues_are_empty
        order = landed if only_landed else lists.order()
        fairness_width = 0 if only_landed else lists.fairness_width
        starts = max(0, self.runner.free() - len(backlog.ready))
        try:
            claims, leases = self.owner.claim(order, most, fairness_width, landed, starts, brought)
        except RedisError:
            self.owner.leases.doubt = True
            raise
        if not claims.registered or name != self.owner.name:
            landed_by_owner[name] = own_landed
        # No claim can name what has landed for an owner that the server does not know any more.
        self._unland(landed_by_owner)
        if not claims.registered:
            return  # nothing was claimed: something removes the owner's record again and again
        backlog.ready.extend(leases)
        for queue_list, text in claims.errors:
            self.reads.refused(queue_list, text)
        if only_landed:
            return  # this claim says nothing about the queues
        for lease in leases:
            lists.served(lease.job.queue_list)
        self.reads.note({lease.job.queue_list for lease in leases})
        self._next_look = monotonic() + POLL_INTERVAL
        self.reads.queues_are_empty = claims.fell_short(most)

    def claim_one(self, lists: Mapping[str, int]) -> Lease | None:
        """Return one job of these lists now (``basic_get``), or None; one that was claimed ahead
        comes first."""
        self.upkeep.register({**self._lists().expires, **lists})
        self.upkeep.repair()
        self.probation.act([*lists], queues_are_empty=True)
        excluded = self.probation.excludes_others
        self.reads.call_off([read for read in self.reads.armed if read.queue_list in lists])
        if any(landed.queue_list in lists for landed in self.backlog.landed):
            self._claim(0)
        for lease in [lease for lease in self.backlog.ready if lease.job.queue_list in lists]:
            self.backlog.ready.remove(lease)
            if not self._requeue_if_former(lease):
                return lease
        if excluded:
            return None
        claims, leases = self.owner.claim([*lists], 1, 1)
        for name, text in claims.errors:
            raise ResponseError(f"queue list {name}: {text}")
        return leases[0] if leases else None

    def _requeue_if_former(self, lease: Lease) -> bool:
        """Requeue a job that was claimed under an earlier name of this owner, under which it cannot
        be acked; return whether it was."""
        if lease.job.owner == self.owner.name:
            return False
        self.owner.leases.requeue([lease])
        return True

    @property
    def deliverable(self) -> bool:
        """Whether a job is ready to be delivered."""
        return bool(self.backlog.ready) and not self.owner.stopping

    def deliver(self) -> bool:
        """Deliver one job to the consumer; return False where none was delivered."""
        if armed := self.reads.armed:
            credit = self._credit()
            # If a callback runs the job in this thread, a job that lands meanwhile waits for its
            # end; and a solo pool could not even requeue it, so that no read may be left. Elsewhere
            # as many are left as there is room for jobs.
            if self.poller.inline or not (credit.room or credit.is_unlimited):
                left_waiting = 0 if self.runner.inline else credit.room
                self.reads.call_off(armed[left_waiting:])
        try:
            lease = self.backlog.ready.popleft()
        except IndexError:  # another thread requeued it a moment ago: the process is stopping
            return False
        if self._requeue_if_former(lease):
            return False
        self._delivering_thread = get_ident()
        try:
            delivered = self._deliver(lease)
        finally:
            self._delivering_thread = 0
        self.owner.leases.delivered(lease)
        # If the job did not begin, its start record did not take the pending acks along.
        if self.runner.inline and self.owner.leases.unsent:
            self.owner.leases.post()
        return delivered

    @property
    def delivers_the_last(self) -> bool:
        """Whether this is called back from the delivery of the last job."""
        return self._delivering_thread == get_ident() and not self.backlog.ready

    def _landed(self, landed: Landed, waited_s: float) -> None:
        """Let the next claim name a job that a read has let land; requeue the job if there is no
        room for it any more."""
        if landed.owner != self.owner.name or not self._credit().room:
            return self.owner.unland(landed.owner, [landed.queue_list])
        may_be_one_of_many = bool(self.backlog) or waited_s < AT_ONCE
        self.backlog.landed.append(landed)
        if may_be_one_of_many:
            self.reads.queues_are_empty = False

    def _unland(self, landed_by_owner: Mapping[str, Iterable[Landed]]) -> None:
        for owner_name, some in landed_by_owner.items():
            self.owner.unland(owner_name, [landed.queue_list for landed in some])

    def requeue(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Requeue jobs, and let the next tick come soon: it claims others in their room. If the
        server cannot be asked now, the next send has the requeues. Any thread may call this."""
        self.owner.leases.requeue(leases, where)
        self.poller.wake()

    def requeue_undelivered(self) -> None:
        """Call off all reads, and requeue what was claimed, or has landed, and was not
        delivered."""
        self.reads.call_off(self.reads.armed)
        self.requeue_unseen()

    def requeue_unseen(self, lists: Collection[str] | None = None) -> int:
        """Requeue the jobs that the consumer has not seen, all or those of some lists: first those
        that have landed, then those that were claimed, which are older. Return the number of the
        claimed ones. Any thread may call this."""
        self._unland(self.backlog.lift(lists))
        if claimed := self.backlog.take(lists):  # mostly none: it is called for each closed queue
            self.requeue(claimed)
        return len(claimed)

    def cancel(self, lists: Collection[str] | None = None) -> None:
        """End the reads on some lists (None: on all), and requeue the jobs from there that were not
        delivered: they have no consumer any more. An error of the server is not raised."""
        reads = [r for r in self.reads.armed if lists is None or r.queue_list in lists]
        try:
            self.reads.call_off(reads)
        except (RedisError, OSError):
            self.owner.leases.doubt = True
        self.reads.close(None if lists is None else reads)
        self.requeue_unseen(lists)
