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
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from ...model.job import Claimed, Job, parse
from ...model.log_text import one_line_each
from ...model.process import own_pid
from ...signals import LostJob, ownership_lost
from ...store.database import Database, Structure, chunks
from ...store.history import History
from ...store.parked import Parked
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call, Line
from .jobs import Event, Jobs, State, batches
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

    acks: list[Claimed]
    starting: dict[Job, None]

    def split(self) -> Iterator[_Part]:
        """Yield what goes in one command each: a plain one for jobs without counters, the last of
        which takes all starts along, or a script for those with counters."""
        plain = [claimed for claimed in self.acks if not claimed.counters]
        counted = [claimed for claimed in self.acks if claimed.counters]
        *first, last = [*chunks(plain, ACKS)] or [[]]
        for some in (*first, *chunks(counted, ACKS)):
            yield _Part([*some], {})
        if last or self.starting:
            yield _Part([*last], self.starting)


class Outbox(Structure):
    """Sends what is given back, then what is parked, then acks and starts, then a claim: each
    relies on those before it. Acks and starts are kept until answered. Thread-safe."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)
        self.history = History(database)
        self.lock = RLock()
        self.jobs = Jobs()
        self.expires: Mapping[str, int] = {}  # queue list -> ms of its x-expires
        #: Job that is RETURNING -> to which end of its queue, and from when on (monotonic s).
        self._returns: dict[Job, tuple[str, float]] = {}
        self._parks_from = 0.0  # when the server, which refused that, is asked to park again
        #: A reply was lost: the private list may hold jobs that nobody here knows.
        self.doubt = False
        self.parked, self.parking = Parked(database), Parking()
        #: Job -> when it is due (server ms), of those that the next round trip parks.
        self._to_park: dict[Job, int] = {}
        #: Claims that were settled lately, and when (monotonic s).
        self.lately: deque[tuple[float, str]] = deque(maxlen=10_000)
        self._line = Line(self.scripts)
        self._pid = own_pid()
        self._next: dict[str, _Part] = {}  # owner -> what waits to be sent
        self._sent: list[tuple[str, _Part]] = []  # without an answer yet
        #: Jobs whose requeue had no answer: the server may have carried it out.
        self._may_be_returned: set[Job] = set()
        self.lost_jobs = LostJobs(database)
        #: Jobs whose absence is no news: their ack's reply was lost, or they were taken away.
        self._no_news: set[Job] = set()

    @property
    def unsent(self) -> bool:
        waits = any(map(any, self._next.values()))
        return bool(waits or self._to_park or self.jobs.counts[State.RETURNING])

    @property
    def unread(self) -> bool:
        return bool(self._line.owed)

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one that is not held is not ours."""
        with self.lock:
            if self.jobs.apply(claimed.job, Event.ACK):
                self._part(claimed.job.owner).acks.append(claimed)

    def record(self, job: Job) -> None:
        """Queue a start record, which the server may have already; the next flush sends it."""
        self._part(job.owner).starting[job] = None

    def _part(self, owner: str) -> _Part:
        return self._next.setdefault(owner, _Part([], {}))

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Requeue jobs in the order given (newest first for the front); a run of one has ended.
        What cannot be sent now is sent as soon as the server can be asked."""
        self._return(jobs, Event.REQUEUE, where)

    def close(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Close the channel of jobs: those that run continue, the others are requeued."""
        self._return(jobs, Event.CLOSE, where)

    def _return(self, jobs: Iterable[Job], event: Event, where: str) -> None:
        with self.lock:
            for job in jobs:
                if self.jobs.apply(job, event) is State.RETURNING:
                    self._returns[job] = where, 0.0
            try:
                self._send_returns()
            except RedisError as exc:
                logger.warning(NOT_YET, self.jobs.counts[State.RETURNING], exc)

    def drop(self, job: Job) -> None:
        """Forget a job that has left by another way than an ack, a requeue or a park."""
        with self.lock:
            self.jobs.apply(job, Event.LEAVE)
            self._to_park.pop(job, None)
            self._returns.pop(job, None)
            self._may_be_returned.discard(job)

    def park(self, job: Job, due: float) -> bool:
        """Move a job that is due then (server ms) to the parked set with the next send, if that is
        worth it; return False if the job stays."""
        with self.lock:
            if not self.parking.is_worth(due) or monotonic() < self._parks_from:
                return False
            if self.jobs.apply(job, Event.PARK):
                self._to_park[job] = int(due)
            return True

    def _drop_start(self, job: Job) -> None:
        """It does not run (any more): what has recorded it is not to come back."""
        for _, part in (*self._sent, *self._next.items()):
            part.starting.pop(job, None)

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

    def _parks(self) -> list[tuple[list[Job], Call]]:
        """Return the calls that park jobs. They are sent until one is answered: a second call finds
        no claim, and parks nothing."""
        due = self._to_park
        groups = batches(dict.fromkeys(due, ""))
        return [(jobs, self.parked.park({job: due[job] for job in jobs})) for _, jobs in groups]

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
        if not self.jobs.counts[State.RETURNING]:
            return
        now = monotonic()
        due = {job: where for job, (where, at) in self._returns.items() if at <= now}
        groups = [*batches({j: w for j, w in due.items() if self.jobs[j] is State.RETURNING})]
        if not groups:
            return
        cut_short, expires = self.jobs.cut_short, self.expires
        calls = [
            self.lists.requeue(jobs, where, expires.get(jobs[0].queue_list, 0), cut_short)
            for where, jobs in groups
        ]
        # Noted before the send: a signal handler that interrupts it may send the same requeues.
        first_sends = {job for _, jobs in groups for job in jobs} - self._may_be_returned
        self._may_be_returned |= first_sends
        replies = self.ask(calls, errors=True)
        for (where, jobs), reply in zip(groups, replies, strict=True):
            if not isinstance(reply, Exception):
                self._returned(jobs, {*reply}, first_sends)
                continue
            self._may_be_returned -= first_sends.intersection(jobs)
            self._returns.update(dict.fromkeys(jobs, (where, now + REFUSED_INTERVAL)))
            logger.error(NOT_YET, len(jobs), f"{jobs[0].queue_list}: {reply}")

    def _returned(
        self, jobs: Sequence[Job], missing: Collection[int], first_sends: Collection[Job]
    ) -> None:
        """Drop jobs whose requeue was answered; those that were ``missing`` are examined later."""
        for number, job in enumerate(jobs, 1):
            # A job that is in flight no more was requeued by a signal handler meanwhile.
            if number in missing and job in self.jobs:
                is_repetition = job not in first_sends
                self.lost_jobs.add(job, job in self.jobs.has_run, is_repetition)
            self.drop(job)

    def _exchange(
        self, parks: list[tuple[list[Job], Call]], last: Call | None = None, *, wait: bool = True
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
        lost: list[Job] = []
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
        for (jobs, call), reply in zip(parks, theirs, strict=False):
            self._note_parked(jobs, call, reply)
        if self._sent:  # by a signal's handler, while this waited: its connection was given up
            self._unanswered(self._sent)
        self._sent = sent[len(read) :]
        self._send_again(refused)
        for job in lost:
            self.announce(job)
        if error is not None:
            self.doubt = self.doubt or last is not None  # nobody reads what a claim brought
            raise error
        if last is not None and isinstance(theirs[-1], Exception):
            raise theirs[-1]
        return theirs[-1] if last is not None else None

    def _note_parked(self, jobs: Sequence[Job], call: Call, reply: Any) -> None:
        """Drop jobs that were parked; requeue those that the server refused to park."""
        if not isinstance(reply, Exception):
            self.parking.parked(min(call.args[2::3]))
            for job in jobs:
                self.drop(job)
            return
        self._parks_from = monotonic() + REFUSED_INTERVAL
        for job in jobs:
            self._to_park.pop(job, None)
        self._return(reversed(jobs), Event.REFUSE, "front")
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
        jobs = [job for job, _ in part.acks]
        if part.acks and part.acks[0].counters:
            return self.lists.settle_counted(owner, jobs)
        return self.lists.settle(owner, jobs, part.starting)

    def _settled(self, acks: list[Claimed], found: int) -> list[Job]:
        """Note that acks were carried out. If the server ``found`` nothing of what they removed,
        ownership was lost; return the jobs for which that is news."""
        now, lost = monotonic(), []
        for job, _ in acks:
            self.lately.append((now, job.claim_id))
            if not found and job not in self._no_news:
                lost.append(job)
            self._no_news.discard(job)
            self.drop(job)
        return lost

    def _unanswered(self, parts: list[tuple[str, _Part]]) -> None:
        """Send acks and starts again whose reply was lost: the server may have carried them out."""
        self._sent = []
        self._no_news.update(job for _, part in parts for job, _ in part.acks)
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
