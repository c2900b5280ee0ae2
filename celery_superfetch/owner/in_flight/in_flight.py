"""The jobs in flight of one process: how they come, what happens to them, and how they leave.

The fetch loop claims jobs, and a worker's gate starts them. Their deliveries ack and requeue them.
When a channel closes, or the worker stops, its jobs that do not run are requeued. The calls come
from any thread but that of the heartbeats. Each event changes the state of a lease;
``PendingLeases`` reports the states to the server. If the process dies, each job is in the owner's
private list: the reaper requeues those with a waiting note, and recovers the others as running.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ...model.log_text import one_line_each
from ...model.permit import StartPermit, clock
from ...store.database import Database
from ...store.private_lists import NOTHING, Claims
from .executor import CONSUMER, Executor
from .lease import Event, Lease, Leases, State
from .lost_claims import LostClaims
from .pending import NOT_YET, PendingLeases

logger = one_line_each(logging.getLogger(__name__))


class Fetched(NamedTuple):
    """The result of a claim."""

    claims: Claims
    leases: Sequence[Lease]  # of its jobs, in their order


class InFlight:
    """The jobs in flight of one process, for all its channels on one database. Thread-safe: acks
    come from the consumer's loop, from a pool's threads, and after the channel is closed.

    A method that asks the server raises ``RedisError`` if it cannot be asked, but for two: the
    requeues stay pending then, and ``start`` returns 0.0.
    """

    def __init__(self, database: Database, runner: Executor = CONSUMER) -> None:
        self.database = database
        self.runner = runner
        self.leases = Leases()
        self.pending = PendingLeases(database, self.leases)
        self.permit = StartPermit(database.config.heartbeat_interval)
        self.lost_claims = LostClaims(self.pending)
        #: Guards the states of all leases. Re-entrant, for signal handlers.
        self.lock = self.pending.lock

    # -- how jobs come

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        fairness_width: int,
        landed: Collection[str] = (),
        starts: int = 0,
        brought: Mapping[str, bytes] = NOTHING,
    ) -> Fetched:
        """Send what is pending and claim, in one round trip. The arguments are those of
        ``PrivateLists.claim``; the first ``starts`` jobs are recorded as running."""
        pending = self.pending
        with pending.lock:
            # No job starts alongside the solo run of a suspect. After a lost reply this process may
            # have claimed a suspect without a lease.
            starts = 0 if pending.needs_reconcile or self.leases.solo else starts
            call = pending.lists.claim(owner, lists, most, fairness_width, landed, starts, brought)
            claims = pending.lists.claims(call, lists, pending.flush(call), brought)
            leases = []
            for number, (job, counters) in enumerate(claims.jobs):
                lease = Lease(job, counters, has_waiting_note=number >= claims.started)
                self.leases.add(lease)
                leases.append(lease)
            return Fetched(claims, leases)

    def reserve(self, lease: Lease) -> None:
        """Note that a request (Celery's) has a job and reports its start: until then the job may be
        requeued."""
        with self.lock:
            self.leases.apply(lease, Event.RESERVE)

    def deliver(self, lease: Lease) -> None:
        """Note that a job is with a consumer that does not report when it begins: a plain kombu
        consumer, or one of batches. It may be running from now on."""
        with self.lock:
            self.leases.apply(lease, Event.DELIVER)

    def delivered(self, lease: Lease) -> None:
        """Note that the consumer of a job was called and has returned. If it did not call
        ``reserve`` meanwhile, it does not report starts: this is ``deliver``. If the claim recorded
        the job as running, but now it waits to be started, the next send clears its start record.
        """
        if lease.state is State.FETCHED:
            self.deliver(lease)
        if lease.has_waiting_note is not True and lease.may_start:
            with self.lock:
                self.pending.add(lease)

    @property
    def is_empty(self) -> bool:
        """Return whether this process has no lease."""
        return not len(self.leases)

    @property
    def has_unsettled(self) -> bool:
        """True if this process has a job that is not acked. A job whose ack is pending counts as
        acked."""
        return len(self.leases) > self.leases.counts[State.SETTLED]

    @property
    def detached_count(self) -> int:
        """The number of jobs that still run although their channel is closed."""
        return self.leases.counts[State.DETACHED]

    def deadline(self, lease: Lease) -> float:
        """Return until when a job may begin (s of ``clock``): no peer can declare this owner dead
        before that. 0.0: it may not begin now."""
        return self.permit.deadline(lease.job.owner)

    def is_former(self, lease: Lease) -> bool:
        """Return whether a job was claimed under a former name of this process."""
        return self.permit.holder not in (None, lease.job.owner)

    @property
    def doubt(self) -> bool:
        """True if a reply was lost: the private list may hold jobs that have no lease here. Until
        the reconcile no job starts."""
        return self.pending.needs_reconcile

    @doubt.setter
    def doubt(self, needed: bool) -> None:
        self.pending.needs_reconcile = needed

    @property
    def is_reconcile_due(self) -> bool:
        """Return whether a reply was lost since the last reconcile, or its second check is due."""
        return self.lost_claims.due

    def release_due(self) -> None:
        """Move parked jobs that are due to their queues, also those that other workers parked."""
        asked, parking = clock(), self.pending.parking
        if parking.is_due:
            released = self.pending.parked.release(self.pending.expires)
            parking.heard(released.now, released.next, asked)

    def recall(self, task_ids: Collection[str]) -> int:
        """Make the parked jobs with these task ids due at once, so that a worker discards the
        revoked ones; return how many."""
        if count := self.pending.parked.call(task_ids):
            self.pending.parking.parked(0)
        return count

    def start(self, lease: Lease, *, record: bool = True) -> float:
        """Start a job; return until when it may begin (``clock``), or 0.0 if it may not begin now.
        Its start record is sent before that, with all that is pending; the reply is read later.

        Arguments:
            record: False for a job that may be acked before it runs, which needs no record.
        """
        with self.lock:
            deadline = self.permit.deadline(lease.job.owner)
            # After a lost reply the server may have a suspect in a solo run in this process.
            if not deadline or self.doubt:
                return 0.0
            is_recorded = lease.has_waiting_note is False
            if not self.leases.apply(lease, Event.START):
                return 0.0
            if not is_recorded:
                if record:
                    self.pending.add(lease)
                try:
                    if self.unsent:
                        self.post()
                except BaseException as exc:
                    self.take_back(lease)
                    if isinstance(exc, (RedisError, OSError)):
                        return 0.0  # the channel meets the same error, and requeues the job
                    raise
            # A signal handler may have requeued the job during the send: it would run twice.
            return deadline if lease.runs else 0.0

    def take_back(self, lease: Lease) -> None:
        """Note that the pool did not begin with a started job: it waits to be started again, and
        the next send clears its start record. (For a run that is ended see ``cut_short``.)"""
        with self.lock:
            self.pending.add_return(lease, Event.TAKE_BACK)
            if lease.may_start:
                self.pending.add(lease)

    def cut_short(self, lease: Lease) -> None:
        """Note that the run of a job is being ended, since this process is stopping. The job is
        requeued when its channel closes, in the order of the claims, and that counts as a stop.
        Until then its start record stays, since the run may not have ended yet."""
        with self.lock:
            if lease.runs:
                lease.has_run = lease.is_cut_short = True
            self.take_back(lease)

    # -- how jobs leave

    def ack(self, lease: Lease) -> None:
        """Ack a job; the next send carries the ack. One that has left is not acked."""
        with self.lock:
            if self.leases.apply(lease, Event.ACK):
                self.pending.add(lease)

    def requeue(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Requeue jobs in the order given (newest first for the front). If one was running, its run
        has ended. If the server cannot be asked now, the requeues stay pending."""
        self._return(leases, Event.REQUEUE, where)

    def close(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Close the channel of jobs: those that run continue, the others are requeued."""
        self._return(leases, Event.CLOSE, where)

    def _return(self, leases: Iterable[Lease], event: Event, where: str) -> None:
        with self.lock:
            for lease in leases:
                self.pending.add_return(lease, event, where)
            if self.leases.counts[State.RETURNING]:
                self._send_requeues()

    def _send_requeues(self) -> None:
        try:
            try:
                self.flush()
            except RedisConnectionError:
                # Mostly its connection alone was lost, as at the close of a channel after a lost
                # connection. The next send opens another.
                self.flush()
        except RedisError as exc:
            logger.warning(NOT_YET, self.leases.counts[State.RETURNING], exc)

    def drop(self, lease: Lease) -> None:
        """Forget a job that has left by another way than an ack, a requeue or a park."""
        with self.lock:
            self.pending.drop(lease)

    def park(self, lease: Lease, due: float) -> bool:
        """Move a job that is due then (server ms) to the parked set with the next send, if that is
        worth it; return False if the job stays."""
        with self.lock:
            return self.pending.add_park(lease, int(due))

    def postpone(self, lease: Lease, seconds: float) -> None:
        """Move a job that cannot run now to the parked set with the next send; after so many
        seconds it returns to its queue. If it was running, its run has ended."""
        with self.lock:
            self.pending.add_postponed(lease, int(seconds * 1000))

    def requeue_waiting(self, leases: Iterable[Lease]) -> list[Lease]:
        """Requeue those of some jobs that wait to be started, in this order, and return them: from
        now on they cannot be started. A job whose run was cut short is not among them, since the
        run may not have ended yet: it is requeued when its channel closes."""
        with self.lock:
            waiting = (lease for lease in leases if lease.state is State.RESERVED)
            back = [lease for lease in waiting if not lease.is_cut_short]
            self.requeue(back)
            return back

    def requeue_all(self) -> None:
        """Requeue all jobs, the newest claims first, after the pool has ended. Those that ran count
        as cut short."""
        with self.lock:
            for lease in self.leases:
                if lease.runs:
                    lease.is_cut_short = True
            self.requeue(reversed(self.leases))

    def requeue_idle(self) -> int:
        """Requeue all jobs that do not run, the newest claims first. Return the number of jobs that
        run: they continue, detached from their channel."""
        with self.lock:
            self.close(reversed(self.leases))
            return sum(lease.runs for lease in self.leases)

    def lose(self, lease: Lease) -> None:
        """Forget a job that the server no longer has for its owner, and announce that ownership was
        lost, unless that was announced when the owner was declared dead."""
        self.drop(lease)
        if not lease.is_taken_away:
            self.pending.announce(lease)

    def lose_all(self, owner: str) -> None:
        """Give up an owner that a peer declared dead, or that the server has forgotten: announce
        that ownership of its running jobs was lost, and requeue its jobs that wait to be started.
        Those that are gone from the private list are examined later (``LostJobs``).

        A job whose run has ended without an ack (``has_run``) is not announced here: its recovery
        is under way, and announces it (``lose``) if it finds no claim.

        Acks are sent all the same. If an ack arrives before the reaper has moved the job, the job
        does not run again; if it arrives later, it removes nothing.
        """
        with self.lock:
            leases = [lease for lease in self.leases if lease.job.owner == owner]
            waiting = [lease for lease in leases if lease.state is State.RESERVED]
            self.requeue(reversed(waiting))
            lost = [lease for lease in leases if lease.runs and not lease.has_run]
            for lease in lost:
                lease.is_taken_away = True
        for lease in lost:
            self.pending.announce(lease)

    # -- what is sent

    @property
    def unsent(self) -> bool:
        """Return whether something is to be sent."""
        return self.pending.has_unsent

    @property
    def unread(self) -> bool:
        """Return whether replies are to be read."""
        return self.pending.has_unread

    def flush(self, *, wait: bool = True) -> None:
        """Send what is pending; without ``wait`` read the replies later, with other ones."""
        self.pending.flush(wait=wait)

    def post(self) -> None:
        """Send what is pending, and read the replies later."""
        self.pending.flush(wait=False)

    def rest(self) -> None:
        """Give the connection back to its pool if it was not used for a moment."""
        self.pending.let_rest()

    def release_connection(self) -> None:
        """Give the connection back to its pool at once, unless it is in use."""
        self.pending.release_connection()
