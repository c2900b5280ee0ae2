"""The jobs in flight of one process: how they come, who has them, and how they leave."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Sequence

from redis.exceptions import RedisError

from ...model.job import Claimed, Job
from ...store.database import Database, Structure
from ...store.private_lists import Claims, PrivateLists, earlier_of
from .jobs import Jobs, State
from .losses import announce
from .lost_claims import LostClaims
from .outbox import Outbox
from .runner import CONSUMER, Runner
from .starts import Starts


class InFlight(Structure):
    """The jobs in flight of one process, for all its channels on one database.

    Thread-safe: acks come from the consumer's loop, from the threads of a pool, and after the
    channel is closed; none of them needs a channel here.
    """

    def __init__(self, database: Database, runner: Runner = CONSUMER) -> None:
        super().__init__(database)
        self.lists = PrivateLists(database)
        self.runner = runner
        #: ms of x-expires for each queue list that has it.
        self.expires: dict[str, int] = {}
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.probation: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self.jobs = Jobs()
        self.outbox = Outbox(self.lists, self.jobs, self.expires)
        self.starts = Starts(self.outbox, self.config.heartbeat_interval, self._lock)
        self.lost_claims = LostClaims(self.lists, self.jobs, self.outbox)

    # -- what is held

    def holds(self, job: Job) -> bool:
        """True while ``job`` is claimed here and has not left."""
        return job in self.jobs

    # -- claims

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        confirm: Sequence[Job],
        starts: int = 0,
    ) -> Claims:
        """Send what waits to be settled and claim, in one round trip.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what waits still does,
                and a claim whose reply was lost is found by ``reconcile``.
        """
        with self._lock:
            call = self.lists.claim(owner, lists, most, turn, confirm, starts)
            reply = self.outbox.send(call)
            if isinstance(reply, Exception):
                raise reply
            claims = self.lists.claims(call, lists, confirm, reply)
            for claimed in claims.jobs:
                self.jobs.add(claimed.job)
            for job, _ in claims.started:
                self.jobs.record(job, True)
            for job, still_ours in zip(confirm, claims.confirmed, strict=False):
                if still_ours is None:
                    self.lose(job)
            return claims

    def take(self, job: Job, asked: float = math.inf) -> bool:
        """Note a job that a blocking read brought; False when it is another's by now.

        Arguments:
            asked: when the read began to wait (monotonic s).

        Raises:
            redis.exceptions.RedisError: that had to be looked up, and could not be.
        """
        with self._lock:
            ours = self.lost_claims.is_ours(job, asked)
            if ours:
                self.jobs.add(job)
            return ours

    def claim_alone(self, owner: str, queue_list: str) -> Claimed | None:
        """Claim the next suspect of a queue list, if nothing runs here; None if there is none.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what it may have claimed
                is found by ``reconcile``.
        """
        with self._lock:
            self.flush()
            # By another thread, since this one looked.
            if self.jobs.those(self._has_begun):
                return None
            call = self.lists.claim_alone(owner, queue_list)
            for job in self.jobs:
                self.jobs.record(job, False)  # it is alone in the record, too
            try:
                reply = self.scripts.ask(call)
            except BaseException:
                self.doubt = True
                raise
            if reply[0] == b"none":
                self.probation -= {queue_list}
            if reply[0] != b"ok":
                return None
            alone = Job(owner, queue_list, reply[1], call.args[-1])
            self.jobs.add(alone, alone=True)
            return Claimed(alone, earlier_of(reply[2]))

    def _has_begun(self, job: Job, state: State) -> bool:
        """What is gathered begins unseen, unless its time has not come."""
        gathered = state is State.GATHERED and job not in self.outbox.aside
        return gathered or self.jobs.runs(job)

    # -- how a job leaves: acked, given back, recovered or killed (``lost_runs``), or taken away

    def ack(self, claimed: Claimed) -> None:
        """Settle a job with whatever is sent next; one that is not held is not ours."""
        with self._lock:
            self.outbox.ack(claimed)

    def requeue(self, jobs: Iterable[Job], where: str = "front") -> None:
        """Give jobs back on purpose, in the order given (newest first for the front).

        What runs stays. What cannot be given back now is, as soon as the server can be asked
        again.
        """
        with self._lock:
            self.outbox.requeue(jobs, where)

    def requeue_waiting(self, jobs: Iterable[Job], all_of_them: bool = True) -> list[Job]:
        """Give back those whose consumers have not handed them over, and now cannot.

        Arguments:
            all_of_them: those, too, that wait for their time.

        Returns:
            the jobs; in the order given, which is that of ``requeue``.
        """
        with self._lock:
            back = [job for job in jobs if self.jobs.state(job) is State.WAITING]
            if not all_of_them:
                aside = self.outbox.aside
                back = [job for job in back if not (job in aside or aside.is_due(job))]
            self.requeue(back)
            return back

    def requeue_all(self) -> None:
        """Give back whatever is still held, newest claims first (the process ends)."""
        with self._lock:
            # Nothing is about to start any more: the pool has ended.
            for job in self.jobs:
                self.starts.end(job)
            self.requeue(reversed(list(self.jobs)))

    def bring_back(self, job: Job) -> None:
        """Have a job in its private list, where whatever is done to it looks for it.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with self._lock:
            self.outbox.bring_back(job)

    def drop(self, job: Job) -> None:
        """Note that a job has left the private list, or was never started."""
        with self._lock:
            self.outbox.drop(job)

    def lose(self, job: Job) -> None:
        """Forget a job that was taken away, and say so."""
        self.drop(job)
        announce(job, self.lists)
        with contextlib.suppress(RedisError), self._lock:  # the next doubt mends it
            self.lost_claims.forget_running(job.owner)

    def lose_all(self, owner: str) -> None:
        """An owner of ours was reaped: announce what runs, forget the rest.

        Its acks are still sent, each for its old private list: one that comes before the
        reaper saves a second run, and one that comes later removes nothing of anybody else's.
        """
        with self._lock:
            acks = self.outbox.acks
            acks.forget_starts_of(owner)
            for job in self.jobs.those(lambda job, _: job.owner == owner):
                if self.jobs.state(job) in (State.WAITING, State.RETURNING):
                    self.drop(job)
            lost = self.jobs.those(lambda job, _: job.owner == owner and self.jobs.runs(job))
            acks.announced(lost)
        for job in lost:
            announce(job, self.lists)

    # -- claims whose reply was lost

    @property
    def doubt(self) -> bool:
        """A reply was lost: the private lists may hold jobs that nobody here knows."""
        return self.outbox.doubt

    @doubt.setter
    def doubt(self, doubt: bool) -> None:
        self.outbox.doubt = doubt

    @property
    def in_doubt(self) -> bool:
        """Whether ``reconcile`` has to look at the private lists."""
        return self.doubt or self.lost_claims.due

    @property
    def knows_all(self) -> bool:
        """Whether the private lists hold nothing that nobody here knows, nor will."""
        return not self.doubt and not self.lost_claims.looks_again

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """``LostClaims.reconcile``: give back what nobody here knows of."""
        with self._lock:
            return self.lost_claims.reconcile(owner, lists)

    # -- round trips

    def flush(self) -> None:
        """Send what waits to be settled now, and see that it is.

        Raises:
            redis.exceptions.RedisError: it still waits, and is sent again.
        """
        with self._lock:
            self.outbox.send()

    def post(self) -> None:
        """Send what waits to be settled; something that is sent later reads the answer.

        Once sent it arrives, whatever becomes of this process; and nobody waits for the server.

        Raises:
            redis.exceptions.RedisError: it still waits, and is sent again.
        """
        with self._lock:
            self.outbox.send(wait=False)

    def rest(self) -> None:
        """Leave an idle connection to whoever looks after those; another thread may be using it."""
        if self._lock.acquire(blocking=False):
            try:
                self.outbox.acks.rest()
            finally:
                self._lock.release()
