"""The jobs in flight of one process: its leases, and the events that change them.

The fetch loop claims jobs, and a worker's gate starts them. Their deliveries ack and requeue them.
When a channel closes, or the worker stops, its jobs that do not run are requeued. The owner calls
``lose_all`` when the server has lost its name, and a worker's release thread ``release_due``. The
calls come from any thread but that of the heartbeats, which takes no lock: it sets
``needs_reconcile``, and what ``pending`` knows of the server (``expires``, ``parking``, the time of
its restart), and renews or ends ``permit``. Each event changes the state of a *lease* (this
process's record of one claimed job); ``PendingLeases`` reports the states to the server.

A *waiting note* beside a job on the server says that the job has not begun. If the process dies,
each job is in the owner's private list on the server. The reaper requeues the jobs with a waiting
note, and recovers the others as running. Acks and requeues that were not sent yet are lost: such a
job is recovered, so a finished one runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from ...model.log_text import one_line_each
from ...model.start_permit import StartPermit, clock
from ...store.database import Database
from ...store.private_lists import NO_PAYLOADS, Claims
from .executor import NO_POOL, Executor
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

    If the server cannot be reached, a method that needs it raises ``RedisError``. There are two
    exceptions: a requeue stays pending and is sent later, and ``start`` returns 0.0.
    """

    def __init__(self, database: Database, executor: Executor = NO_POOL) -> None:
        self.database = database
        self.executor = executor
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
        brought: Mapping[str, bytes] = NO_PAYLOADS,
        *,
        backlog: object = None,
    ) -> Fetched:
        """Send what is pending and claim, in one round trip.

        Arguments (see ``PrivateLists.claim_call``):
            lists: the queue lists to claim from, in this order.
            most: the largest number of jobs to claim.
            fairness_width: how many neighbours of ``lists`` jobs are taken from in rotation.
            landed: queue lists of jobs that have landed, which are claimed first.
            starts: how many of the first jobs are recorded as running at once.
            brought: queue list -> payload that its blocking read has brought already.
            backlog: the backlog of the channel that claims (see ``requeue_strays``).
        """
        pending = self.pending
        with pending.lock:
            # A *suspect* is a job that may have killed an earlier process; in its *solo run* no
            # other job may start in this process. After a lost reply this process may have claimed
            # a suspect that has no lease here.
            starts = 0 if pending.needs_reconcile or self.leases.solo else starts
            call = pending.lists.claim_call(
                owner, lists, most, fairness_width, landed, starts, brought
            )
            reply = pending.flush(call)
            try:
                claims = pending.lists.read_claims(call, lists, reply, brought)
                leases = []
                for number, (job, counters) in enumerate(claims.jobs):
                    lease = Lease(job, counters, backlog, has_waiting_note=number >= claims.started)
                    self.leases.add(lease)
                    leases.append(lease)
            except BaseException:  # also what a signal handler raises: a job may have no lease
                self.needs_reconcile = True
                raise
            return Fetched(claims, leases)

    def reserve(self, lease: Lease) -> None:
        """Note that a request (Celery's) has a job, and will report its start. Until then the job
        may be requeued."""
        with self.lock:
            self.leases.apply(lease, Event.RESERVE)

    def deliver(self, lease: Lease) -> None:
        """Apply DELIVER: the job is with a consumer that does not report when it begins, a plain
        kombu consumer or one of batches. It may be running from now on."""
        with self.lock:
            self.leases.apply(lease, Event.DELIVER)

    def delivered(self, lease: Lease) -> None:
        """Note that the consumer of a job was called and has returned. If ``reserve`` was not
        called meanwhile, the consumer does not report starts, and this does what ``deliver`` does.
        If the claim recorded the job as running, but the job now waits to be started, the next
        send puts its waiting note back.
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
        """The number of jobs that still run although their channel is closed. Not one whose run has
        ended, and whose settlement is deferred."""
        if not self.leases.counts[State.DETACHED]:  # the fetch loop asks in each tick
            return 0
        return sum(lease.state is State.DETACHED and not lease.has_run for lease in self.leases)

    @property
    def returning_count(self) -> int:
        """The number of jobs whose requeue is pending, also those that wait for its time."""
        return self.leases.counts[State.RETURNING]

    @property
    def refused_count(self) -> int:
        """The number of jobs that this process cannot run, that the server refused to move
        elsewhere, and that wait for their requeue. A job whose requeue alone was refused does not
        count: nothing is claimed from such a queue, and the others must go on."""
        if not self.returning_count:  # each tick asks, and mostly there is none
            return 0
        return sum(lease.is_refused and lease.state is State.RETURNING for lease in self.leases)

    @property
    def unsettled_run_count(self) -> int:
        """The number of jobs whose run has ended, and whose settlement is deferred: the server was
        away or refused it."""
        return sum(lease.runs and lease.has_run for lease in self.leases)

    def deadline(self, lease: Lease) -> float:
        """Return until when a job may begin (s of ``clock``). No peer can declare this owner dead
        before that. 0.0: the job may not begin now."""
        return self.permit.deadline(lease.job.owner)

    def is_former(self, lease: Lease) -> bool:
        """Return whether a job was claimed under a former name of this process."""
        return self.permit.holder not in (None, lease.job.owner)

    @property
    def needs_reconcile(self) -> bool:
        """True if a reply was lost: the private list may have jobs that have no lease here. A
        reconcile (``LostClaims``) requeues those; until it is done, no job starts."""
        return self.pending.needs_reconcile

    @needs_reconcile.setter
    def needs_reconcile(self, needed: bool) -> None:
        self.pending.needs_reconcile = needed

    @property
    def is_reconcile_due(self) -> bool:
        """Return whether a reply was lost since the last reconcile, or its second check is due."""
        return self.lost_claims.due

    def expect_late(self) -> None:
        """Make a second check due: a blocking read that was closed may still bring a job."""
        self.lost_claims.expect_late()

    def release_due(self) -> None:
        """Move parked jobs that are due to their queues, also those that other workers parked."""
        asked, parking = clock(), self.pending.parking
        if parking.is_due:
            released = self.pending.parked.release(self.pending.expires)
            parking.note_answer(released.now, released.next, asked)

    def recall(self, task_ids: Collection[str]) -> int:
        """Make the parked jobs with these task ids due at once, so that a worker discards the
        revoked ones; return how many."""
        if count := self.pending.parked.make_due(task_ids):
            self.pending.parking.note_parked(0)
        return count

    def start(self, lease: Lease, *, record: bool) -> float:
        """Start a job; return until when it may begin (``clock``), or 0.0 if it may not begin now.
        Before this returns, the start record is sent (a command that removes the waiting note),
        with all that is pending; the reply is read later.

        Arguments:
            record: False for a job that may be acked before it runs, which needs no record.
        """
        with self.lock:
            deadline = self.permit.deadline(lease.job.owner)
            # After a lost reply the server may have a suspect in a solo run in this process.
            if not deadline or self.needs_reconcile:
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
                    self.withdraw_start(lease)
                    if isinstance(exc, (RedisError, OSError)):
                        # The connection is lost. The channel's next send fails as well; it then
                        # closes, and requeues the job.
                        return 0.0
                    raise
            # A signal handler may have requeued the job during the send: it would run twice.
            return deadline if lease.runs else 0.0

    def withdraw_start(self, lease: Lease) -> None:
        """Note that the pool did not begin with a started job: the job waits to be started again,
        and the next send puts its waiting note back. If its channel is closed, the next send
        requeues it. (For a run that is ended see ``cut_short``.)"""
        with self.lock:
            self.pending.add_return(lease, Event.WITHDRAW)
            if lease.may_start:
                self.pending.add(lease)

    def cut_short(self, lease: Lease) -> None:
        """Mark the run of a job as being ended, since this process is stopping. The job is requeued
        when its channel closes, in the order of the claims, and that counts as a stop. Until then
        its start record stays, since the run may not have ended yet."""
        with self.lock:
            if lease.runs:
                lease.has_run = lease.is_cut_short = True
            self.withdraw_start(lease)

    # -- how jobs leave

    def ack(self, lease: Lease) -> None:
        """Ack a job; the next send carries the ack. A job that has left this process is not
        acked."""
        with self.lock:
            if self.leases.apply(lease, Event.ACK):
                self.pending.add(lease)

    def requeue(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Requeue jobs in the order given (newest first for the front). If a job was running, its
        run has ended. If the server cannot be reached now, the requeues stay pending."""
        self._return(leases, Event.REQUEUE, where)

    def requeue_later(self, lease: Lease) -> None:
        """Requeue a job that this process cannot run, and that the server has just refused to move,
        to the back of its queue, after ``REFUSED_INTERVAL``."""
        with self.lock:
            self.pending.add_refused(lease, Event.REQUEUE)

    def close(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Note that the channel of these jobs is closed: those that run continue, the others are
        requeued."""
        self._return(leases, Event.CLOSE, where)

    def _return(self, leases: Iterable[Lease], event: Event, where: str) -> None:
        with self.lock:
            for lease in leases:
                self.pending.add_return(lease, event, where)
            if self.returning_count:
                self._send_requeues()

    def _send_requeues(self) -> None:
        # Not ``self.flush``, which also makes announcements: the lock may be held here.
        try:
            try:
                self.pending.flush()
            except RedisConnectionError:
                # Mostly its connection alone was lost, as at the close of a channel after a lost
                # connection. The next send opens another.
                self.pending.flush()
        except RedisError as exc:
            # An ack alone may have been refused. It is pending again, and the next send reports it.
            if self.returning_count:
                self.pending.log_later(logger.warning, NOT_YET, self.returning_count, exc)

    def drop(self, lease: Lease) -> None:
        """Forget a job that has left by another way than an ack, a requeue or a park."""
        with self.lock:
            self.leases.apply(lease, Event.LEAVE)

    def park(self, lease: Lease, due: float) -> bool:
        """Move a job to the *parked set* (jobs that wait on the server for their time) with the
        next send, if it is due late enough; return False if the job stays.

        Arguments:
            due: the time of the job (server ms).
        """
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
            requeued = [lease for lease in waiting if not lease.is_cut_short]
            self.requeue(requeued)
            return requeued

    def end_pauses(self) -> None:
        """End the pauses of requeues after a refusal: the next send has them. A process that claims
        no more does not claim those jobs again."""
        with self.lock:
            for lease in self.leases:
                lease.returns_after = 0.0

    def requeue_all(self) -> None:
        """Requeue all jobs, the newest claims first, after the pool has ended. Those that ran count
        as cut short. A requeue that the server refused a moment ago is sent again at once."""
        with self.lock:
            self.end_pauses()
            for lease in self.leases:
                if lease.runs:
                    lease.is_cut_short = True
            self.requeue(reversed(self.leases))

    def requeue_idle(self) -> int:
        """Requeue all jobs that do not run, the newest claims first. Return the number of jobs that
        run: they continue, detached from their channel. As in ``requeue_all``, a requeue that the
        server refused is sent again at once."""
        with self.lock:
            for lease in self.leases:
                lease.returns_after = 0.0
            self.close(reversed(self.leases))
            return sum(lease.runs for lease in self.leases)

    def requeue_strays(self, backlog: object, known: Collection[Lease]) -> int:
        """Requeue the *strays* of one channel, the newest claims first; return how many. A stray is
        a job that was claimed for the channel, and that the channel does not have. If a signal
        handler raises just when a job is taken from a claim or from the backlog, the job would stay
        claimed until the process ends.

        The channel must not be claiming or delivering. If another thread has taken a job from the
        backlog in order to requeue it, the job is requeued once: by the first of the two.

        Arguments:
            backlog: the backlog of the channel.
            known: the jobs that the channel has.
        """
        with self.lock:
            strays = [
                lease
                for lease in reversed(self.leases)
                if lease.state is State.FETCHED and lease.backlog is backlog and lease not in known
            ]
            if strays:  # without any, a send that failed just now would be tried once more
                self.requeue(strays)
            return len(strays)

    def lose(self, lease: Lease) -> None:
        """Forget a job whose claim is gone from the server. The next ``announce`` announces that
        its ownership was lost, unless ``lose_all`` did that before."""
        self.drop(lease)
        if not lease.is_taken_away:
            self.pending.add_lost(lease.job)

    def lose_all(self, owner: str) -> None:
        """Give up an owner that a peer declared dead, or that the server has forgotten: requeue its
        jobs that wait to be started, and have the next ``announce`` announce that ownership of its
        running jobs was lost. If the private list no longer has a job that is to be requeued,
        ``LostJobs`` finds out later what became of it.

        A job whose run has ended without an ack (``has_run``) is not announced here: ``Settlement``
        is recovering it, and announces the loss (``lose``) if the server has no claim of it.

        Acks are still sent. If an ack arrives before the reaper has moved the job, the job does not
        run again; if it arrives later, it removes nothing.
        """
        with self.lock:
            leases = [lease for lease in self.leases if lease.job.owner == owner]
            waiting = [lease for lease in leases if lease.state is State.RESERVED]
            self.requeue(reversed(waiting))
            lost = [lease for lease in leases if lease.runs and not lease.has_run]
            for lease in lost:
                if not lease.is_taken_away:  # this call may repeat one that was interrupted
                    lease.is_taken_away = True
                    self.pending.add_lost(lease.job)

    def announce(self) -> None:
        """Write the log lines, and announce the jobs whose ownership was lost (log, signal,
        counter). Log handlers and receivers of the signal may take long. So a worker's maintenance
        thread calls this, and not its loop, and the lock must not be held."""
        self.write_log()
        self.pending.announcements.make()

    def write_log(self) -> None:
        """Write the log lines alone: that needs no server. The lock must not be held."""
        self.pending.log_lines.make()

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
        """Send what is pending; without ``wait`` read the replies later, with other ones. A plain
        consumer also makes the announcements: no other thread does that for it, and after an ack it
        may fetch no more. The lock must not be held."""
        self.pending.flush(wait=wait)
        if not self.executor.endless:
            self.announce()

    def post(self) -> None:
        """Send what is pending, and read the replies later."""
        self.pending.flush(wait=False)

    def release_idle_connection(self) -> None:
        """Return the connection to its pool if it was not used for a moment."""
        self.pending.release_if_idle()

    def release_connection(self) -> None:
        """Return the connection to its pool at once, unless it is in use."""
        self.pending.release_connection()
