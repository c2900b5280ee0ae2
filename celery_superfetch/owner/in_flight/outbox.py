"""What is on its way to the server, in the order in which it must come there."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import RLock
from time import monotonic
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from ...model.job import Claimed, Job, parse
from ...model.process import own_pid
from ...signals import LostJob, ownership_lost
from ...store.database import Database, Structure
from ...store.history import History
from ...store.parked import Parked
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call, Line
from .jobs import Jobs, Move, State, batches
from .parking import Parking

logger = logging.getLogger(__name__)

#: Replies to acks that are left to be read together: a look at the socket costs as much as a send.
LEFT_MOST = 16

REFUSED_INTERVAL = 5.0  # seconds until the server is asked again where it refused


class _Sent(NamedTuple):
    acks: list[Claimed]
    starting: dict[Job, str]  # and their digests


class _Return(NamedTuple):
    number: int  # however often it is sent, it is carried out once at most
    where: str  # to which end of the queue
    jobs: list[Job]  # of one owner and one queue list


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
        #: Job -> to which end of its queue it goes back. Who is not RETURNING any more does not.
        self._back: dict[Job, str] = {}
        #: Those that were sent, and may have gone. They are sent again as they were: a job that
        #: went may be claimed by now, by another thread of this very process, and run.
        self._unanswered: list[_Return] = []
        #: Those that the server refused, and when they are tried again (monotonic s).
        self._refused: dict[Job, str] = {}
        self._refused_until = 0.0
        self._parks_from = 0.0  # when the server, which refused that, is asked to park again
        self._numbers = count(1)
        #: A reply was lost: the private lists may hold jobs that nobody here knows.
        self.doubt = False
        self.parked, self.parking = Parked(database), Parking()
        self._to_park: dict[
            Job, int
        ] = {}  # with the next round trip: when they are due (server ms)
        #: When jobs were settled lately (monotonic s), and which.
        self.lately: deque[tuple[float, tuple[str, str, int]]] = deque(maxlen=10_000)
        self._line = Line(self.scripts)
        self._pid = own_pid()
        self._next = _Sent([], {})
        self._sent: list[_Sent] = []  # without an answer yet
        #: Jobs whose absence is no news: their ack's reply was lost, or they were taken away.
        self._no_news: set[Job] = set()

    @property
    def unsent(self) -> bool:
        return any((*self._next, self._to_park, self.jobs.counts[State.RETURNING]))

    @property
    def unread(self) -> bool:
        return bool(self._line.owed)

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one that is not held is not ours."""
        with self.lock:
            if self.jobs.move(claimed.job, Move.ACK):
                self._next.acks.append(claimed)
                self._next.starting.pop(claimed.job, None)

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Give jobs back in the order given (newest first for the front), but for what runs. What
        cannot be given back now is, as soon as the server can be asked."""
        with self.lock:
            for job in jobs:
                if self.jobs.move(job, Move.REQUEUE) is State.RETURNING:
                    self._back[job] = where
            try:
                self._give_back()
            except RedisError as exc:
                logger.warning(
                    "%d jobs could not be given back to their queues yet (%s). They are safe in "
                    "the private lists and go back when the server answers, or by the reaper.",
                    self.jobs.counts[State.RETURNING],
                    exc,
                )

    def drop(self, job: Job) -> None:
        with self.lock:
            self.jobs.drop(job)
            self._forget_start(job)
            self._to_park.pop(job, None)

    def park(self, job: Job, due: float) -> bool:
        """Have a job that is due then (server ms) wait on the server, if that is worth it; it is
        not ours from here on."""
        with self.lock:
            if not self.parking.is_worth(due) or monotonic() < self._parks_from:
                return False
            if job in self.jobs:
                self._to_park[job] = int(due)
            return True

    def _forget_start(self, job: Job) -> None:
        """It does not run (any more): what has recorded it is not to come back."""
        for part in (*self._sent, self._next):
            part.starting.pop(job, None)

    def flush(self, last: Call | None = None, *, wait: bool = True) -> Any:
        """Send all that waits, and then ``last``, whose reply it returns. Without ``wait`` other
        replies are read later. After an error what waits is sent again."""
        with self.lock:
            self._give_back()
            if self._line.overdue:
                # Their connection may be lost by now, which is no reason not to ask on another.
                with suppress(RedisError):
                    self._exchange([])
                self.rest()
            parks = self._parks()
            return self._exchange(parks, last, wait=wait or bool(parks))

    def _parks(self) -> list[Call]:
        """What parks jobs. If it gets lost, they are what a private list holds and nobody knows."""
        due, self._to_park = self._to_park, {}
        groups = [jobs for _, jobs in batches(dict.fromkeys(due, ""))]
        for job in due:
            self.drop(job)
        return [
            self.parked.park({job: due[job] for job in jobs}, next(self._numbers))
            for jobs in groups
        ]

    def post(self) -> None:
        """Send what waits, whatever becomes of this process; the answer is read later."""
        self.flush(wait=False)

    def rest(self) -> None:
        """Leave an idle connection to whoever looks after those."""
        if self.lock.acquire(blocking=False):  # else another thread may be using it
            try:
                if not self._line.owed:
                    self._line.give_back()
            finally:
                self.lock.release()

    def ask(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        """Run scripts of which a lost reply leaves a doubt; as ``Scripts.run_all``."""
        try:
            return self.scripts.run_all(calls, errors=errors)
        except BaseException:
            self.doubt = True
            raise

    def _give_back(self) -> None:
        """Send the requeues that wait. What the server refuses must not stop claims and acks."""
        if not self.jobs.counts[State.RETURNING]:
            return
        if self._refused and monotonic() >= self._refused_until:
            self._back, self._refused = {**self._refused, **self._back}, {}
        new = [_Return(next(self._numbers), *batch) for batch in batches(self._back)]
        self._back = {}
        self._unanswered = [
            batch._replace(jobs=left)
            for batch in self._unanswered + new
            if (left := [job for job in batch.jobs if self.jobs.get(job) is State.RETURNING])
        ]
        if not self._unanswered:
            return
        calls = [
            self.lists.requeue(jobs, where, self.expires.get(jobs[0].queue_list, 0), number)
            for number, where, jobs in self._unanswered
        ]
        replies = self.ask(calls, errors=True)
        sent, self._unanswered = self._unanswered, []
        for (_, where, jobs), reply in zip(sent, replies, strict=True):
            if not isinstance(reply, Exception):
                # Of one that was not there it may be untrue: then nobody knows of it from here on.
                self.doubt = self.doubt or 0 in reply
                for job in jobs:
                    self.drop(job)
                continue
            self._refused.update(dict.fromkeys(jobs, where))
            self._refused_until = monotonic() + REFUSED_INTERVAL
            logger.error(
                "%d jobs could not be given back to queue list %s: %s. They are safe in the "
                "private list; it is tried again in %g s, and by the reaper.",
                len(jobs),
                jobs[0].queue_list,
                reply,
                REFUSED_INTERVAL,
            )

    def _exchange(self, parks: list[Call], last: Call | None = None, *, wait: bool = True) -> Any:
        """Send acks and starts between other calls; with ``wait``, the reply to ``last``."""
        if self._pid != own_pid():  # the connection, and what it owes, are the parent's
            self._pid, self._line, self._sent = own_pid(), Line(self.scripts), []
        new, self._next = [self._next] if any(self._next) else [], _Sent([], {})
        acks = [self.lists.ack(part.acks, part.starting) for part in new]
        calls = [*parks, *acks, *([last] if last else ())]
        if not calls and not self._line.owed:
            return None
        sent, self._sent = self._sent + new, []
        lost: list[Job] = []
        refused: list[_Sent] = []
        error: Exception | None = None
        try:
            owed, theirs = self._line.exchange(calls, wait=wait, leave=LEFT_MOST)
            read = owed + theirs[len(parks) :][: len(new)]
            for part, reply in zip(sent if wait else sent[: len(read)], read, strict=True):
                if isinstance(reply, Exception):
                    refused, error = [*refused, part], reply
                else:
                    lost += self._settled(part.acks, set(reply))
        except BaseException:  # also a greenlet that is killed, and what a signal's handler raises
            self.doubt = True
            if self._line.owed:  # what it still owes is nobody's any more
                self._line.forget()
            self._unanswered_acks([*sent, *self._sent])
            raise
        for call, reply in zip(parks, theirs, strict=False):
            self._note_parked(call, reply)
        if self._sent:  # by a signal's handler, while this waited: its connection was given up
            self._unanswered_acks(self._sent)
        self._sent = sent[len(read) :]
        if refused:
            self._send_again(refused)
        for job in lost:
            self.announce(job)
        if error is not None:
            self.doubt = self.doubt or last is not None  # nobody reads what a claim brought
            raise error
        if last is not None and isinstance(theirs[-1], Exception):
            raise theirs[-1]
        return theirs[-1] if last is not None else None

    def _note_parked(self, call: Call, reply: Any) -> None:
        if not isinstance(reply, Exception):
            self.parking.parked(min(call.args[4::4]))
            return
        self.doubt, self._parks_from = True, monotonic() + REFUSED_INTERVAL
        logger.error(
            "%d jobs that are due later could not be parked: %s. They go back to queue list %s "
            "and, until the server takes them, wait in a worker's memory. It is asked in %g s.",
            len(call.args[2::4]),
            reply,
            call.args[0],
            REFUSED_INTERVAL,
        )

    def _settled(self, acks: list[Claimed], missing: set[int]) -> list[Job]:
        """Note that acks were carried out; the jobs that were missing, unless that is no news."""
        now, lost = monotonic(), []
        for at, (job, _) in enumerate(acks, 1):
            self.lately.append((now, job.trace))
            if at in missing and job not in self._no_news:
                lost.append(job)
            self._no_news.discard(job)
            self.drop(job)
        return lost

    def _unanswered_acks(self, parts: list[_Sent]) -> None:
        self._sent = []
        self._no_news.update(job for part in parts for job, _ in part.acks)
        self._send_again(parts)

    def _send_again(self, parts: list[_Sent]) -> None:
        parts = [*parts, self._next]
        starting = {job: name for part in parts for job, name in part.starting.items()}
        over = (None, State.SETTLED)  # of one that has ended, only its ack
        self._next = _Sent(
            [claimed for part in parts for claimed in part.acks],
            {job: name for job, name in starting.items() if self.jobs.get(job) not in over},
        )

    def announce(self, job: Job) -> None:
        known = parse(job.payload)
        logger.warning(
            "Job %s from queue %s is no longer ours (owner %s was taken for dead or forgotten, or "
            "the job was moved by hand): it may run again elsewhere. Its ack removed nothing of "
            "anybody else's.",
            job.title,
            job.queue_list,
            job.owner,
        )
        with suppress(RedisError):  # counting is not worth a failure
            self.history.lost(job)
        ownership_lost.send(sender=None, lost=LostJob(*job[:3], known.task, known.task_id))
