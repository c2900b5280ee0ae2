"""Requeues, parks, acks and starts that are pending, sent in the order in which they must arrive.

``InFlight`` extends this; the fetch loop, deliveries and maintenance flush it. What had no reply is
sent again. It is in memory only: if the process dies, a job whose ack was not sent is in the
private list, and the reaper has it run again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from ...model.job import Job, parse
from ...model.log_text import one_line_each
from ...model.process import own_pid
from ...signals import LostJob, ownership_lost
from ...store.batches import batches
from ...store.database import Database, Structure, chunks
from ...store.history import History
from ...store.parked import Parked
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call, Line
from .lease import Event, Lease, Leases, State
from .lost_jobs import LostJobs
from .parking import Parking

logger = one_line_each(logging.getLogger(__name__))

#: Replies to acks that a later send reads together, since a read of the socket costs as much as a
#: send. Without it, a worker on threads runs 0.88 to 0.90 times as many jobs a second.
LEFT_MOST = 16

#: Jobs that one command acks at most: a pool of greenlets may end thousands in one tick.
ACKS = 1000

REFUSED_INTERVAL = 5.0  # seconds until the server is asked again where it refused

NOT_YET = (
    "%d jobs could not be given back to their queues yet (%s). They are safe in the private lists, "
    "and go back when the server takes them, or by the reaper."
)


class _Part(NamedTuple):
    """Acks and starts of one owner."""

    acks: list[Lease]
    starting: dict[Lease, None]

    def split(self) -> Iterator[_Part]:
        """Yield what goes in one command each: a plain one for jobs without counters, the last of
        which takes all starts along, or a script for those with counters."""
        plain = [lease for lease in self.acks if lease.counters is None]
        counted = [lease for lease in self.acks if lease.counters is not None]
        *first, last = [*chunks(plain, ACKS)] or [[]]
        for some in (*first, *chunks(counted, ACKS)):
            yield _Part([*some], {})
        if last or self.starting:
            yield _Part([*last], self.starting)


def job_of(lease: Lease) -> Job:
    """Return the job of a lease."""
    return lease.job


class Outbox(Structure):
    """Sends what is given back, then what is parked, then acks and starts, then a claim: each
    relies on those before it. Acks and starts are kept until answered. Thread-safe."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)
        self.history = History(database)
        self.lock = RLock()
        self.leases = Leases()
        self.expires: Mapping[str, int] = {}  # queue list -> ms of its x-expires
        #: Leases that are RETURNING or PARKING, in the order in which they are sent.
        self._ending: dict[Lease, None] = {}
        self._parks_from = 0.0  # when the server, which refused that, is asked to park again
        #: A reply was lost: the private list may hold jobs that nobody here knows.
        self.doubt = False
        self.parked, self.parking = Parked(database), Parking()
        #: Claims that were settled lately, and when (monotonic s).
        self.lately: deque[tuple[float, str]] = deque(maxlen=10_000)
        self._line = Line(self.scripts)
        self._pid = own_pid()
        self._next: dict[str, _Part] = {}  # owner -> what waits to be sent
        self._sent: list[tuple[str, _Part]] = []  # without an answer yet
        self.lost_jobs = LostJobs(database)

    @property
    def unsent(self) -> bool:
        return bool(self._ending) or any(map(any, self._next.values()))

    @property
    def unread(self) -> bool:
        return bool(self._line.owed)

    def ack(self, lease: Lease) -> None:
        """Ack a job; the next send carries the ack. One that has left is not acked."""
        with self.lock:
            if self.leases.apply(lease, Event.ACK):
                self._ending.pop(lease, None)
                self._part(lease.job.owner).acks.append(lease)

    def record(self, lease: Lease) -> None:
        """Queue a start record, which the server may have already; the next flush sends it."""
        self._part(lease.job.owner).starting[lease] = None

    def _part(self, owner: str) -> _Part:
        return self._next.setdefault(owner, _Part([], {}))

    def requeue(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Requeue jobs in the order given (newest first for the front); a run of one has ended.
        What cannot be sent now is sent as soon as the server can be asked."""
        self._return(leases, Event.REQUEUE, where)

    def close(self, leases: Iterable[Lease], where: str = "front") -> None:
        """Close the channel of jobs: those that run continue, the others are requeued."""
        self._return(leases, Event.CLOSE, where)

    def _return(self, leases: Iterable[Lease], event: Event, where: str) -> None:
        with self.lock:
            for lease in leases:
                self._note_return(lease, event, where)
            try:
                self._send_returns()
            except RedisError as exc:
                logger.warning(NOT_YET, self.leases.counts[State.RETURNING], exc)

    def _note_return(self, lease: Lease, event: Event, where: str = "front") -> None:
        """Apply an event; if the job is to be requeued after it, the next send does that."""
        if self.leases.apply(lease, event) is State.RETURNING:
            lease.returns_to = where
            self._ending.pop(lease, None)  # behind those that were requeued before
            self._ending[lease] = None

    def drop(self, lease: Lease) -> None:
        """Forget a job that has left."""
        with self.lock:
            self.leases.apply(lease, Event.LEAVE)
            self._ending.pop(lease, None)

    def park(self, lease: Lease, due: float) -> bool:
        """Move a job that is due then (server ms) to the parked set with the next send, if that is
        worth it; return False if the job stays."""
        with self.lock:
            if not self.parking.is_worth(due) or monotonic() < self._parks_from:
                return False
            if self.leases.apply(lease, Event.PARK):
                lease.due_ms = int(due)
                self._ending[lease] = None
            return True

    def _drop_start(self, lease: Lease) -> None:
        """Do not send the start record of a job (again): it does not run."""
        for _, part in (*self._sent, *self._next.items()):
            part.starting.pop(lease, None)

    def flush(self, last: Call | None = None, *, wait: bool = True) -> Any:
        """Send all that waits, and then ``last``, whose reply it returns. Without ``wait`` other
        replies are read later. After an error what waits is sent again."""
        with self.lock:
            self._send_returns()
            if self._line.overdue:
                # Their connection may be lost by now, which is no reason not to ask on another.
                with suppress(RedisError):
                    self._exchange([])
                self.release_connection()
            parks = self._parks()
            return self._exchange(parks, last, wait=wait or bool(parks))

    def _parks(self) -> list[tuple[list[Lease], Call]]:
        """Return the calls that park jobs. They are sent until one is answered: a second call finds
        no claim, and parks nothing."""
        parking = [lease for lease in self._ending if lease.state is State.PARKING]
        return [
            (some, self.parked.park({lease.job: lease.due_ms for lease in some}))
            for some in batches(parking, job_of)
        ]

    def post(self) -> None:
        """Send what waits, whatever becomes of this process; the answer is read later."""
        self.flush(wait=False)

    def rest(self) -> None:
        """Let others of this process have the connection if it lies idle."""
        if self._line.rests and self.lock.acquire(blocking=False):
            try:
                if self._line.rests:
                    self._line.release()
            finally:
                self.lock.release()

    def release_connection(self) -> None:
        """Leave an idle connection to whoever looks after those."""
        if self.lock.acquire(blocking=False):  # else another thread may be using it
            try:
                if not self._line.owed:
                    self._line.release()
            finally:
                self.lock.release()

    def ask(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        """Run scripts of which a lost reply leaves a doubt; as ``Scripts.run_all``."""
        try:
            return self.scripts.run_all(calls, errors=errors)
        except BaseException:
            self.doubt = True
            raise

    def _send_returns(self) -> None:
        """Give back what waits for that. What the server refuses must not stop claims and acks."""
        if not self.leases.counts[State.RETURNING]:
            return
        now = monotonic()
        returning = (lease for lease in self._ending if lease.state is State.RETURNING)
        due = [lease for lease in returning if lease.returns_after <= now]
        groups = [
            some
            for where in ("front", "back")
            for some in batches([lease for lease in due if lease.returns_to == where], job_of)
        ]
        if not groups:
            return
        # Noted before the send: a signal handler that interrupts it may send the same requeues.
        first_sends = {lease for lease in chain(*groups) if not lease.requeue_was_sent}
        for lease in first_sends:
            lease.requeue_was_sent = True
        replies = self.ask([self._requeue_call(some) for some in groups], errors=True)
        for some, reply in zip(groups, replies, strict=True):
            if not isinstance(reply, Exception):
                self._returned(some, {*reply}, first_sends)
                continue
            for lease in some:
                lease.requeue_was_sent = lease not in first_sends
                lease.returns_after = now + REFUSED_INTERVAL
            logger.error(NOT_YET, len(some), f"{some[0].job.queue_list}: {reply}")

    def _requeue_call(self, some: Sequence[Lease]) -> Call:
        expires = self.expires.get(some[0].job.queue_list, 0)
        stopped = {lease.job for lease in some if lease.is_cut_short}
        jobs = [lease.job for lease in some]
        return self.lists.requeue(jobs, some[0].returns_to, expires, stopped)

    def _returned(
        self, some: Sequence[Lease], missing: Collection[int], first_sends: Collection[Lease]
    ) -> None:
        """Drop jobs whose requeue was answered; those that were ``missing`` are examined later."""
        for number, lease in enumerate(some, 1):
            # A job that is in flight no more was requeued by a signal handler meanwhile.
            if number in missing and not lease.is_gone:
                self.lost_jobs.add(lease.job, lease.has_run, lease not in first_sends)
            self.drop(lease)

    def _exchange(
        self, parks: list[tuple[list[Lease], Call]], last: Call | None = None, *, wait: bool = True
    ) -> Any:
        """Send acks and starts between other calls; with ``wait``, the reply to ``last``."""
        if self._pid != own_pid():  # the connection, and what it owes, are the parent's
            self._pid, self._line, self._sent = own_pid(), Line(self.scripts), []
        waiting, self._next = self._next, {}
        new = [(owner, part) for owner, whole in waiting.items() for part in whole.split()]
        acks = [self._settle(owner, part) for owner, part in new]
        calls = [*(call for _, call in parks), *acks, *([last] if last else ())]
        if not calls and not self._line.owed:
            return None
        sent, self._sent = self._sent + new, []
        lost: list[Lease] = []
        refused: list[tuple[str, _Part]] = []
        error: Exception | None = None
        try:
            owed, theirs = self._line.exchange(calls, wait=wait, leave=LEFT_MOST)
            read = owed + theirs[len(parks) :][: len(new)]
            for part, reply in zip(sent if wait else sent[: len(read)], read, strict=True):
                if isinstance(reply, Exception):
                    refused, error = [*refused, part], reply
                else:
                    lost += self._settled(part[1].acks, reply)
        except BaseException:  # also a greenlet that is killed, and what a signal's handler raises
            self.doubt = True
            if self._line.owed:  # what it still owes is nobody's any more
                self._line.drop()
            self._unanswered([*sent, *self._sent])
            raise
        for (some, call), reply in zip(parks, theirs, strict=False):
            self._note_parked(some, call, reply)
        if self._sent:  # by a signal's handler, while this waited: its connection was given up
            self._unanswered(self._sent)
        self._sent = sent[len(read) :]
        self._send_again(refused)
        for lease in lost:
            self.announce(lease.job)
        if error is not None:
            self.doubt = self.doubt or last is not None  # nobody reads what a claim brought
            raise error
        if last is not None and isinstance(theirs[-1], Exception):
            raise theirs[-1]
        return theirs[-1] if last is not None else None

    def _note_parked(self, some: Sequence[Lease], call: Call, reply: Any) -> None:
        """Drop jobs that were parked; requeue those that the server refused to park."""
        if not isinstance(reply, Exception):
            self.parking.parked(min(call.args[2::3]))
            for lease in some:
                self.drop(lease)
            return
        self._parks_from = monotonic() + REFUSED_INTERVAL
        self._return(reversed(some), Event.REFUSE, "front")
        logger.error(
            "%d jobs that are due later could not be parked: %s. They go back to queue list %s "
            "and, until the server takes them, wait in a worker's memory. It is asked in %g s.",
            len(call.args[1::3]),
            reply,
            call.args[0],
            REFUSED_INTERVAL,
        )

    def _settle(self, owner: str, part: _Part) -> Call:
        """Return the call that sends one part of a split."""
        jobs = [lease.job for lease in part.acks]
        if part.acks and part.acks[0].counters is not None:
            return self.lists.settle_counted(owner, jobs)
        return self.lists.settle(owner, jobs, [lease.job for lease in part.starting])

    def _settled(self, acks: list[Lease], found: int) -> list[Lease]:
        """Note that acks were carried out. If the server ``found`` nothing of what they removed,
        ownership was lost; return the leases for which that is news."""
        now, lost = monotonic(), []
        for lease in acks:
            self.lately.append((now, lease.job.claim_id))
            if not (found or lease.ack_was_sent or lease.is_taken_away):
                lost.append(lease)
            self.drop(lease)
        return lost

    def _unanswered(self, parts: list[tuple[str, _Part]]) -> None:
        """Send acks and starts again whose reply was lost: the server may have carried them out."""
        self._sent = []
        for _, part in parts:
            for lease in part.acks:
                lease.ack_was_sent = True
        self._send_again(parts)

    def _send_again(self, parts: list[tuple[str, _Part]]) -> None:
        for owner, part in parts:
            waiting = self._part(owner)
            waiting.acks.extend(part.acks)
            waiting.starting.update(part.starting)

    def announce(self, job: Job) -> None:
        message = parse(job.payload)
        logger.warning(
            "Lost ownership of job %s (queue=%s, owner=%s): the server no longer has its claim, "
            "and it may run again elsewhere. The owner was declared dead, its keys were flushed, "
            "deleted or evicted, the server restarted empty or with older data, or the job was "
            "moved by hand. The ack has no effect.",
            job.title,
            job.queue_list,
            job.owner,
        )
        with suppress(RedisError):  # counting is not worth a failure
            self.history.lost(job)
        ownership_lost.send(sender=None, lost=LostJob(*job[:3], message.task, message.task_id))
