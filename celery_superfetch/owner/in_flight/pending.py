"""The leases whose state the server does not know yet, and the sends that report those states.

``InFlight`` adds a lease after each event that the server has to know of, and flushes.
``LostClaims`` does both in a reconcile, and ``SuspectClaims`` flushes with its claims. They do so
in every thread that has such an event: that of the consumer's loop (claims, starts, requeues), the
pool's threads and greenlets (acks), the maintenance thread, the one that requeues at a stop and the
one that leaves later (``LateLeave``), and in signal handlers. The heartbeat thread never does.

A *waiting note* is a field beside a job in its private list (the jobs that this owner has claimed,
on the server). It says that the job has not begun, so that the death of its owner is no strike for
it. The claim makes it. A start record is the command that removes it; if the job then waits again
after all, the note is put back.

One send has, in this order: requeues, parks, waiting notes to put back, acks with starts, and last
a claim. What is sent for a lease follows from its state at the send. If a command gets no reply,
its leases are pending again, and the next send repeats it: if the server had carried it out, it
does nothing now.

Pending leases are in memory alone. If the process dies, a job whose ack was not sent is in the
private list, the reaper recovers it, and it runs again. Of a send that was under way, the server
may have carried out any first part; each command is atomic, so each job is in one place.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from threading import RLock
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ...model.job import Job
from ...model.log_text import one_line_each
from ...model.process import own_pid
from ...store.batches import batches
from ...store.database import Database, chunks
from ...store.parked_jobs import EARLY_MS, ParkedJobs
from ...store.private_lists import PrivateLists
from ...store.redis.call import Call
from ...store.redis.pipeline import Command, Pipeline, no_report
from ...store.stats import Stats
from .later_calls import LaterCalls
from .lease import HELD, RUNS, Event, Lease, Leases, State
from .lost_jobs import LostJobs
from .lost_ownership import announce
from .parking import Parking

logger = one_line_each(logging.getLogger(__name__))

#: Unread replies to acks, at most, that a send leaves to a later one, which reads them together: a
#: read of the socket costs as much as a send. If each send read them, a worker on threads would run
#: 0.88 to 0.90 times as many jobs a second.
UNREAD_REPLIES_MAX = 16

#: Jobs that one command acks at most: a pool of greenlets may end thousands in one tick.
ACKS_PER_COMMAND = 1000

#: Seconds until a job that the server refused to move is requeued: after a refused requeue, park,
#: or move to the dead set or to probation.
REFUSED_INTERVAL = 5.0

NOT_YET = (
    "Requeue failed (jobs=%d): %s. The jobs are safe in Redis, in this worker's private list: they "
    "are requeued when Redis accepts it, or recovered when this worker ends. Check Redis."
)


def job_of(lease: Lease) -> Job:
    """Return the job of a lease."""
    return lease.job


def _may_lack_note(lease: Lease) -> bool:
    """Return whether a job that does not run may have no waiting note on the server. The note of a
    job whose run was cut short stays away, since that run may not have ended yet."""
    return lease.has_waiting_note is not True and not lease.is_cut_short


class PendingLeases:
    """The leases of one process whose state is to be sent, and the connection that sends it.

    Its lock guards all leases. It is held from the moment at which a send reads the states until
    the replies are handled: no other thread changes a state in between.
    """

    def __init__(self, database: Database, leases: Leases) -> None:
        self.leases = leases
        self.lists = PrivateLists(database, self.log_later)
        self.stats = Stats(database)
        self.parked, self.parking = ParkedJobs(database), Parking()
        self.lost_jobs = LostJobs(database)
        self.lock = RLock()
        #: Queue list -> ms of its x-expires; the heartbeat thread replaces it.
        self.expires: Mapping[str, int] = {}
        #: A reply was lost: the private list may have jobs that have no lease here. ``LostClaims``
        #: requeues them (the reconcile).
        self.needs_reconcile = False
        #: Claims that were acked, and when (monotonic s), the latest last.
        self.recently_acked: deque[tuple[float, str]] = deque(maxlen=10_000)
        self._scripts = database.scripts
        self._pipeline = Pipeline(self._scripts)
        self._pid = own_pid()
        self._pending: dict[Lease, None] = {}  # in the order in which they were added
        self._unanswered: list[Lease] = []  # sent without a reply: the next send has them first
        self._parks_from = 0.0  # after the server refused a park, none is sent before (monotonic s)
        self._is_sending = False
        self._must_send_again = False  # leases became pending during a send
        self._refusal: Exception | None = None  # the latest error with which the server answered
        self.announcements = LaterCalls()  # of jobs whose ownership was lost
        self.log_lines = LaterCalls()

    # -- what is to be sent

    @property
    def has_unsent(self) -> bool:
        """True if something is to be sent now. A requeue that waits since the server has refused a
        move does not count: if it did, the fetch loop would send in each tick, and never wait for
        new jobs. The waiting note of such a job counts until it is sent."""
        if not (self._pending or self._unanswered):
            return False
        now = monotonic()
        # A copy, which is made in one step: the lock is not held, so another thread may add a lease
        # meanwhile.
        return any(
            lease.returns_after <= now
            or (lease.has_waiting_note is False and _may_lack_note(lease))
            for lease in [*self._unanswered, *self._pending]
        )

    @property
    def has_unread(self) -> bool:
        """Return whether some commands were sent whose replies were not read yet."""
        return self._pipeline.has_unread

    def add(self, lease: Lease) -> None:
        """Add a lease. The next send reports the state that the lease has then, among the leases of
        the same kind of command in the order in which they were added (see ``_commands_for``)."""
        self._pending.pop(lease, None)
        self._pending[lease] = None

    def add_return(self, lease: Lease, event: Event, where: str = "front") -> None:
        """Apply an event to a lease. If the new state is ``RETURNING``, add the lease: the next
        send requeues the job. ``where``: to the front or the back of its queue."""
        if self.leases.apply(lease, event) is State.RETURNING:
            lease.returns_to = where
            self.add(lease)

    def add_refused(self, lease: Lease, event: Event) -> None:
        """Apply an event to the lease of a job that this process cannot run, and that the server
        has just refused to move: it is requeued after ``REFUSED_INTERVAL``. If it were requeued at
        once, it would be claimed and refused again without a pause. It goes to the back of its
        queue, so that many such jobs keep no other job waiting."""
        lease.is_refused = True
        self._pause_return(lease)
        self.add_return(lease, event, "back")

    def _pause_return(self, lease: Lease) -> None:
        """Delay a requeue by ``REFUSED_INTERVAL``. If the job was in its solo run, that ends:
        otherwise no other job could start meanwhile."""
        lease.returns_after = monotonic() + REFUSED_INTERVAL
        if self.leases.solo is lease:
            self.leases.solo = None

    def add_park(self, lease: Lease, due_ms: int) -> bool:
        """Add a job that is due at a time of the server's clock: the next send moves it to the
        *parked set*, where it waits on the server. Return False, and change nothing, if the job is
        due too soon for that (``WORTH_PARKING``), or the server refused a park a moment ago."""
        if not self.parking.is_worth(due_ms) or monotonic() < self._parks_from:
            return False
        if self.leases.apply(lease, Event.PARK):
            lease.due_ms = due_ms
            self.add(lease)
        return True

    def add_postponed(self, lease: Lease, delay_ms: int) -> None:
        """Add a job that cannot run now: the next send moves it to the parked set for
        ``delay_ms``."""
        if self.leases.apply(lease, Event.PARK):
            # The server releases a parked job ``EARLY_MS`` ms before its time.
            lease.delay_ms = delay_ms + EARLY_MS
            self.add(lease)

    # -- what the user's code gets, when the lock is released

    def add_lost(self, job: Job) -> None:
        """Add a job whose ownership was lost: the next ``InFlight.announce`` announces it."""
        self.announcements.add(partial(announce, job, self.stats))

    def log_later(self, log: Callable[..., object], *args: Any) -> None:
        """Add a log line, which is written by ``log(*args)`` with the next ``InFlight.announce``:
        here the lock may be held."""
        self.log_lines.add(partial(log, *args))

    # -- the send

    def flush(self, last: Call | None = None, *, wait: bool = True) -> Any:
        """Send what is pending, and then ``last``; return the reply to ``last``. If a signal
        handler calls this in the middle of a send, it returns at once, and the interrupted send
        sends again before it ends.

        Arguments:
            wait: read all replies now. Without it a later send may read the replies to waiting
                notes, acks and starts.

        Raises:
            RedisError, OSError: what had no reply, or was refused, is pending again.
        """
        with self.lock:
            if self._pid != own_pid():  # the connection, and the replies on it, are the parent's
                self._pid, self._pipeline = own_pid(), Pipeline(self._scripts)
            if self._is_sending:
                if last is not None:
                    raise RuntimeError("a signal handler must not claim while a send is under way")
                self._must_send_again = True
                return None
            self._is_sending = True
            try:
                reply = self._send(last, wait)
            except BaseException:  # also the end of a greenlet, and what a signal handler raises
                self.needs_reconcile = True
                raise
            finally:
                self._is_sending = False
            return self._checked(reply, last)

    def _send(self, last: Call | None, wait: bool) -> Any:
        """Send, and send again what became pending meanwhile; return the reply to ``last``."""
        if self._pipeline.has_late_replies:
            # Replies were left unread for a while, and their connection may be lost by now. They
            # are read first, without a new command. If the connection is lost, their leases are
            # pending again, and all is sent on another connection.
            try:
                self._pipeline.send([])
            except RedisError:
                self.needs_reconcile = True
            self._pipeline.release()
        # A refusal among the late replies is no news either: what was refused is pending again, so
        # this send has it, and its own replies say whether the server still refuses.
        self._refusal = None
        replies: list[Any] = []
        last_commands = [] if last is None else [Command(last, replies.append, no_report)]
        self._must_send_again = True
        while self._must_send_again:
            self._must_send_again = False
            moves, others = self._commands()
            commands = [*moves, *others, *last_commands]
            if commands or self._pipeline.has_unread:
                # The replies to moves are waited for: a channel that closes makes no further send
                # by which it would learn that they failed.
                waits = wait or bool(moves)
                self._pipeline.send(commands, wait=waits, leave=UNREAD_REPLIES_MAX)
            last_commands = []
        return replies[0] if replies else None

    def _checked(self, reply: Any, last: Call | None) -> Any:
        """Raise the error by which the server refused a command; return the reply to ``last``."""
        if self._refusal is not None:
            # The caller does not get the reply to ``last``. If it is a claim, its jobs have no
            # lease.
            self.needs_reconcile = self.needs_reconcile or last is not None
            raise self._refusal
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _commands(self) -> tuple[list[Command], list[Command]]:
        """Return the commands that the states of the pending leases require: the moves (requeues
        and parks), and the others. From here on their leases are not pending. If a command gets no
        reply, its leases are pending again."""
        # The containers are replaced before they are read: what a signal handler adds meanwhile is
        # in one of the two, and would be lost if an older copy was sent.
        unanswered, self._unanswered = self._unanswered, []
        added, self._pending = self._pending, {}
        pending = [*unanswered, *added]
        try:
            return self._commands_for(dict.fromkeys(pending))
        except BaseException:
            self._unanswered = [*pending, *self._unanswered]
            raise

    def _commands_for(self, pending: Iterable[Lease]) -> tuple[list[Command], list[Command]]:
        now = monotonic()
        returning, parking, waiting, starting, acked = [], [], [], [], []
        for lease in pending:
            if lease.state is State.SETTLED:
                acked.append(lease)
            elif lease.state in RUNS:
                if lease.has_waiting_note is not False:
                    starting.append(lease)
            elif lease.state in HELD:
                if _may_lack_note(lease):
                    waiting.append(lease)
            elif lease.state is State.PARKING:
                parking.append(lease)
            elif lease.state is State.RETURNING:
                if lease.returns_after <= now:
                    returning.append(lease)
                else:
                    self._pending[lease] = None
                    # Without the note the job would count as running until its requeue. If the
                    # process died meanwhile, the job would get a strike.
                    if _may_lack_note(lease):
                        waiting.append(lease)
        moves = [*self._requeues(returning), *self._parks(parking)]
        return moves, [*self._notes(waiting), *self._settles(acked, starting)]

    def _requeues(self, returning: Sequence[Lease]) -> Iterator[Command]:
        for where in ("front", "back"):
            for some in batches(
                [lease for lease in returning if lease.returns_to == where], job_of
            ):
                expires = self.expires.get(some[0].job.queue_list, 0)
                stopped = {lease.job for lease in some if lease.is_cut_short}
                call = self.lists.requeue([*map(job_of, some)], where, expires, stopped)
                on_reply = partial(self._on_requeued, some)
                yield Command(call, on_reply, partial(self._on_no_reply_to_move, some))

    def _parks(self, parking: Sequence[Lease]) -> Iterator[Command]:
        for some in batches([lease for lease in parking if not lease.delay_ms], job_of):
            yield self._park(self.parked.park({lease.job: lease.due_ms for lease in some}), some)
        for some in batches([lease for lease in parking if lease.delay_ms], job_of):
            call = self.parked.postpone({lease.job: lease.delay_ms for lease in some})
            yield self._park(call, some)

    def _park(self, call: Call, some: Sequence[Lease]) -> Command:
        return Command(
            call, partial(self._on_parked, some), partial(self._on_no_reply_to_move, some)
        )

    def _notes(self, waiting: Sequence[Lease]) -> Iterator[Command]:
        for some in batches(waiting, job_of):
            call = self.lists.put_notes_back(
                some[0].job.owner, [lease.job.claim_id for lease in some]
            )
            yield Command(
                call, partial(self._on_noted, some), partial(self._on_no_reply_to_settle, [], some)
            )
            for lease in some:
                # Not known until the reply. If the job starts before that, a later command removes
                # the note.
                lease.has_waiting_note = None

    def _settles(self, acked: Sequence[Lease], starting: Sequence[Lease]) -> Iterator[Command]:
        """Yield commands that ack and record starts, for each owner: a plain HDEL for the starts
        and for the acks of jobs without a history, and a script for the acks of jobs that have one
        (``counters``)."""
        for owner in dict.fromkeys(lease.job.owner for lease in chain(acked, starting)):
            of_owner = [lease for lease in acked if lease.job.owner == owner]
            starts = [lease for lease in starting if lease.job.owner == owner]
            plain = [lease for lease in of_owner if lease.counters is None]
            # The first command has all starts, so that one is sent for starts without any ack.
            for some in [*chunks(plain, ACKS_PER_COMMAND)] or [[]]:
                if some or starts:
                    call = self.lists.settle(owner, [*map(job_of, some)], map(job_of, starts))
                    yield self._settle(call, some, starts)
                    starts = []
            for some in chunks(
                [lease for lease in of_owner if lease.counters is not None], ACKS_PER_COMMAND
            ):
                call = self.lists.settle_counted(owner, [*map(job_of, some)])
                yield self._settle(call, some, [])

    def _settle(self, call: Call, acks: Sequence[Lease], starts: Sequence[Lease]) -> Command:
        for lease in starts:
            # Not known until the reply. If the job has to wait again before that, a later command
            # puts the note back.
            lease.has_waiting_note = None
        on_reply = partial(self._on_settled, acks, starts)
        return Command(call, on_reply, partial(self._on_no_reply_to_settle, acks, starts))

    # -- the replies

    def _on_requeued(self, some: Sequence[Lease], reply: Any) -> None:
        if isinstance(reply, Exception):
            # A requeue that the server refuses is sent again later, and does not raise: claims and
            # acks must go on.
            for lease in some:
                self._pause_return(lease)
            self._unanswered += some
            self.log_later(logger.error, NOT_YET, len(some), f"{some[0].job.queue_list}: {reply}")
            return
        self._drop_moved(some, reply, State.RETURNING)

    def _drop_moved(self, some: Sequence[Lease], missing: Iterable[int], state: State) -> None:
        """Forget jobs whose move was answered: none of them is this process's any more. The claims
        of the ``missing`` ones (positions from 1) were gone before: ``LostJobs`` examines these
        later, but not a job that was acked meanwhile and so is no longer in ``state``."""
        numbers = {*missing}
        for number, lease in enumerate(some, 1):
            if number in numbers and lease.state is state:
                self.lost_jobs.add(lease.job, lease.has_run, lease.move_had_no_reply)
            self.leases.apply(lease, Event.LEAVE)

    def _on_no_reply_to_move(self, some: Sequence[Lease], was_sent: bool) -> None:
        """Send a requeue or a park again, since it has no reply. If it was not even sent (the
        server could not be reached), it was surely not carried out."""
        for lease in some:
            lease.move_had_no_reply = lease.move_had_no_reply or was_sent
        self._unanswered += some

    def _on_parked(self, some: Sequence[Lease], reply: Any) -> None:
        if not isinstance(reply, Exception):
            now = self.parking.now
            self.parking.note_parked(min(lease.due_ms or now + lease.delay_ms for lease in some))
            self._drop_moved(some, reply, State.PARKING)
            return
        self._parks_from = monotonic() + REFUSED_INTERVAL
        for lease in reversed(some):
            if lease.delay_ms:
                self.add_refused(lease, Event.REFUSE)
            else:
                self.add_return(lease, Event.REFUSE)
        self._must_send_again = True
        self.log_later(
            logger.error,
            "Jobs could not be scheduled for later (jobs=%d, queue=%s): %s. They are requeued. A "
            "worker that claims one before Redis accepts it may hold it in memory until it is due. "
            "Next try in %g s. Check Redis.",
            len(some),
            some[0].job.queue_list,
            reply,
            REFUSED_INTERVAL,
        )

    def _on_noted(self, some: Sequence[Lease], reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refusal = reply
            self._unanswered += some
            return
        for lease in some:
            lease.has_waiting_note = True

    def _on_settled(self, acks: Sequence[Lease], starts: Sequence[Lease], reply: Any) -> None:
        """Note what was carried out. ``reply`` is the number of claims and waiting notes that the
        server removed. An owner that is declared dead loses all its jobs together, so 0 means that
        the ownership of all these jobs was lost. It does not mean that for a job whose earlier ack
        had no reply: that ack may have removed the claim."""
        if isinstance(reply, Exception):
            self._refusal = reply
            self._unanswered += [*acks, *starts]
            return
        for lease in starts:
            lease.has_waiting_note = False
        now = monotonic()
        for lease in acks:
            self.recently_acked.append((now, lease.job.claim_id))
            if not (reply or lease.ack_had_no_reply or lease.is_taken_away):
                self.add_lost(lease.job)
            self.leases.apply(lease, Event.LEAVE)

    def _on_no_reply_to_settle(
        self, acks: Sequence[Lease], notes: Sequence[Lease], was_sent: bool
    ) -> None:
        """Send acks, and the changes of waiting notes, again, since they have no reply."""
        for lease in acks:
            lease.ack_had_no_reply = lease.ack_had_no_reply or was_sent
        self._unanswered += [*acks, *notes]

    # -- the connection

    def release_if_idle(self) -> None:
        """Return the connection to its pool if it was not used for ``IDLE_S`` seconds."""
        if self._pipeline.is_idle:
            self.release_connection()

    def release_connection(self) -> None:
        """Return the connection to its pool at once, unless replies are to be read (during a send
        there are always some: its commands count as unread before they are sent)."""
        if self.lock.acquire(blocking=False):  # else another thread may be using the connection
            try:
                if not self._pipeline.has_unread:
                    self._pipeline.release()
            finally:
                self.lock.release()
