"""The jobs in flight of one process: how they come, which part of it has them, and how they leave.

The fetch loop claims; the gate starts; deliveries ack and requeue; a closing channel and the
worker's stop requeue. If the process dies, each job is in the owner's private list: the reaper
requeues those with a waiting note, and recovers the others as running.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from ...model.job import Job
from ...model.permit import StartPermit, clock
from ...store.database import Database
from ...store.private_lists import Claims, earlier_of
from .lease import Event, Lease, State
from .lost_claims import LostClaims
from .outbox import Outbox
from .runner import CONSUMER, Runner


class Fetched(NamedTuple):
    """The result of a claim."""

    claims: Claims
    leases: Sequence[Lease]  # of its jobs, in their order


class InFlight(Outbox):
    """The jobs in flight of one process, for all its channels on one database. Thread-safe: acks
    come from the consumer's loop, from a pool's threads, and after the channel is closed. What asks
    the server raises ``RedisError`` where it cannot be asked."""

    def __init__(self, database: Database, runner: Runner = CONSUMER) -> None:
        super().__init__(database)
        self.runner = runner
        self.permit = StartPermit(self.config.heartbeat_interval)
        self.lost_claims = LostClaims(self)
        #: Until then (monotonic s) no other job starts alongside the solo job; and no other suspect
        #: alongside one that runs alongside other jobs.
        self.solo_until = 0.0
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.suspects: frozenset[str] = frozenset()

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        landed: Collection[str] = (),
        starts: int = 0,
    ) -> Fetched:
        """Send what is pending and claim, in one round trip; as ``PrivateLists.claim``."""
        with self.lock:
            # None starts beside a suspect, which a lost reply may have brought, too.
            starts = 0 if self.doubt or self.leases.solo else starts
            call = self.lists.claim(owner, lists, most, turn, landed, starts)
            claims = self.lists.claims(call, lists, self.flush(call))
            leases = []
            for number, (job, counters) in enumerate(claims.jobs):
                lease = Lease(job, counters, has_waiting_note=number >= claims.started)
                self.leases.add(lease)
                leases.append(lease)
            return Fetched(claims, leases)

    def claim_alone(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Lease | None:
        """Claim the next suspect of a queue list, if there is one and nothing runs here, nor may:
        a lost reply may have brought another. No job starts alongside it for ``solo_window`` of its
        level (s)."""
        with self.lock:
            self.flush()
            # A job that is with such a consumer may have begun.
            counts = self.leases.counts
            if counts[State.DELIVERED] or counts[State.RUNNING] or counts[State.DETACHED]:
                return None
            lease = self._claim_suspect(owner, queue_list)
            if lease is not None:
                self.leases.solo = lease
                self.solo_until = monotonic() + solo_window(lease.claimed.probation)
            return lease

    def claim_alongside(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Lease | None:
        """Claim the next suspect of a queue list to run alongside other jobs, if a quiesce for it
        was in vain. No other suspect starts for ``solo_window`` of its level (s): if two started
        together, one would be blamed for the other's deaths again and again."""
        with self.lock:
            self.flush()
            has_suspect = any(lease.is_suspect for lease in self.leases)
            if has_suspect and monotonic() < self.solo_until:
                return None
            lease = self._claim_suspect(owner, queue_list, alongside=True)
            if lease is not None:
                self.solo_until = monotonic() + solo_window(lease.claimed.probation)
            return lease

    def end_solo(self) -> Job | None:
        """End the solo run of a suspect whose window is over: other jobs may start; return it."""
        with self.lock:
            solo = self.leases.solo
            if solo is None or monotonic() < self.solo_until:
                return None
            self.leases.solo = None
            return solo.job

    @property
    def solo(self) -> Lease | None:
        """The lease of the job on probation that has this process for itself."""
        return self.leases.solo

    def heard_of_suspects(self, lists: Collection[str]) -> None:
        """Add queue lists that have jobs on probation."""
        self.suspects |= {*lists}

    def found_no_suspects(self, lists: Collection[str]) -> None:
        """Remove queue lists that have no jobs on probation."""
        self.suspects -= {*lists}

    def _claim_suspect(self, owner: str, queue_list: str, alongside: bool = False) -> Lease | None:
        if self.doubt:
            return None
        call = self.lists.claim_suspect(owner, queue_list, alongside)
        [reply] = self.ask([call])
        if reply[0] == b"none":
            self.suspects -= {queue_list}
        if reply[0] != b"ok":
            return None
        job = Job(owner, queue_list, reply[1], call.args[-1])
        lease = Lease(job, earlier_of(reply[2]), has_waiting_note=False, is_suspect=True)
        self.leases.add(lease)
        return lease

    def reserve(self, lease: Lease) -> None:
        """Note that a request waits to start a job: until it starts, the job may be requeued."""
        with self.lock:
            self.leases.apply(lease, Event.RESERVE)

    def deliver(self, lease: Lease) -> None:
        """Note that a job is with a consumer that does not report when it begins."""
        with self.lock:
            self.leases.apply(lease, Event.DELIVER)

    def delivered(self, lease: Lease) -> None:
        """Note that the consumer of a job was called. If the job only waits now, clear the start
        record that it got with its claim."""
        if lease.state is State.FETCHED:
            self.deliver(lease)
        if not lease.has_waiting_note and lease.may_start:
            with self.lock:
                if lease.may_start:
                    self.unrecord(lease)

    def unrecord(self, lease: Lease) -> None:
        """Clear the start record of a job that has not begun.

        Raises RedisError where the server cannot be asked.
        """
        with self.lock:
            lease.has_waiting_note = True
            self._drop_start(lease)
            self._exchange([])  # a record on its way would come behind this
            self.lists.unrecord(lease.job.owner, [lease.job.claim_id])

    def stop_claims(self, lease: Lease) -> None:
        """Let nothing be claimed until a job leaves."""
        with self.lock:
            self.leases.stop_claims(lease)

    @property
    def stops_claims(self) -> bool:
        """Whether a job that has not left lets nothing be claimed."""
        return self.leases.stopping_claims_count > 0

    @property
    def is_empty(self) -> bool:
        """Whether this process has no lease."""
        return not len(self.leases)

    @property
    def has_unsettled(self) -> bool:
        """Whether there is a job whose ack is not pending."""
        return len(self.leases) > self.leases.counts[State.SETTLED]

    @property
    def detached_count(self) -> int:
        """The number of jobs that still run although their channel is closed."""
        return self.leases.counts[State.DETACHED]

    def deadline(self, lease: Lease) -> float:
        """Return until when a job may begin (``clock``); 0.0 if it may not begin now."""
        return self.permit.deadline(lease.job.owner)

    def is_former(self, lease: Lease) -> bool:
        """Return whether a job was claimed under a former name of this process."""
        return self.permit.holder not in (None, lease.job.owner)

    @property
    def is_reconcile_due(self) -> bool:
        """Whether a reply was lost since the last reconcile, or its second check is due."""
        return self.lost_claims.due

    def release_due(self) -> None:
        """Move parked jobs that are due to their queues, also those that other workers parked."""
        asked = clock()
        if self.parking.is_due:
            released = self.parked.release(self.expires)
            self.parking.heard(released.now, released.next, asked)

    def recall(self, task_ids: Collection[str]) -> int:
        """Make parked jobs due at once; return how many."""
        if count := self.parked.call(task_ids):
            self.parking.parked(0)
        return count

    def start(self, lease: Lease, *, record: bool = True) -> float:
        """Hand a job over to those who run it: until when it may begin (``clock``); 0: not now.
        Its ``record`` as running (there is none where it may be settled before it runs) is sent
        before, and waited for only if jobs are to be parked."""
        with self.lock:
            deadline = self.permit.deadline(lease.job.owner)
            # While a reply is lost, the record may say that a suspect runs here.
            if not deadline or self.doubt or not lease.may_start:
                return 0.0
            if lease.has_waiting_note:
                if record:
                    self.record(lease)
                try:
                    if self.unsent:
                        self.post()
                except (RedisError, OSError):  # its channel meets the same, and gives it back
                    self._drop_start(lease)
                    return 0.0
            # A signal handler may have requeued the job during the send: it would run twice.
            if not self.leases.apply(lease, Event.START):
                return 0.0
            lease.has_waiting_note = False
            return deadline

    def take_back(self, lease: Lease) -> None:
        """Note that the pool did not begin with a job: it waits to be started again."""
        with self.lock:
            self._note_return(lease, Event.TAKE_BACK)

    def cut_short(self, lease: Lease) -> None:
        """End the run of a job because this process is stopping: its requeue counts as a stop. It
        is requeued when its channel closes, in the order of the claims."""
        with self.lock:
            if lease.runs:
                lease.has_run = lease.is_cut_short = True
            self.take_back(lease)

    def put_on_probation(self, lease: Lease) -> None:
        """Requeue a job to wait for a solo run. If this process dies in between, the job is marked,
        and whatever returns it puts it there."""
        with self.lock:
            self.lists.mark_suspect(lease.job)
            self.requeue([lease])
            self.suspects |= {lease.job.queue_list}

    def confirm_starts(self) -> None:
        """Have the records of starts arrive: not behind what removes them."""
        with self.lock, suppress(RedisError):  # what was refused has not come either
            self._exchange([])

    def requeue_waiting(self, leases: Iterable[Lease]) -> list[Lease]:
        """Requeue, in this order, those that wait to be started, which now cannot; return these. A
        run that was cut short may not have ended yet: its job is requeued at the close."""
        with self.lock:
            waiting = (lease for lease in leases if lease.state is State.RESERVED)
            back = [lease for lease in waiting if not lease.is_cut_short]
            self.requeue(back)
            return back

    def requeue_all(self) -> None:
        """Requeue all jobs, the newest claims first: the pool has ended."""
        with self.lock:
            for lease in self.leases:
                if lease.runs:
                    lease.is_cut_short = True
            self.requeue(reversed(self.leases))

    def requeue_idle(self) -> int:
        """Requeue all jobs that do not run, the newest claims first; return how many do."""
        with self.lock:
            self.close(reversed(self.leases))
            return sum(lease.runs for lease in self.leases)

    def lose(self, lease: Lease) -> None:
        """Forget a job that the server no longer has for its owner, and announce that, unless it
        was announced when the owner was declared dead."""
        self.drop(lease)
        if not lease.is_taken_away:
            self.announce(lease.job)

    def lose_all(self, owner: str) -> None:
        """Announce the running jobs of an owner that the server has declared dead or forgotten, and
        requeue those that wait, if they are still there. Acks are still sent: one before the reaper
        saves a second run, a later one removes nothing."""
        with self.lock:
            leases = [lease for lease in self.leases if lease.job.owner == owner]
            for lease in leases:
                self._drop_start(lease)
            waiting = [lease for lease in leases if lease.state is State.RESERVED]
            self.requeue(reversed(waiting))
            lost = [lease for lease in leases if lease.runs]
            for lease in lost:
                lease.is_taken_away = True
        for lease in lost:
            self.announce(lease.job)
