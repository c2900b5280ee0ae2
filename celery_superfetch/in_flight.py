"""How jobs come to this process and how it loses them: claims, lost replies, jobs taken away."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic

from redis import Redis
from redis.exceptions import RedisError

from .config import Config
from .job import Claimed, Job
from .keys import Keys
from .losses import announce
from .lost_replies import LostReplies
from .private_list import Claims, earlier_of
from .settling import Settling


class InFlight(Settling):
    """The jobs in flight of one process, for all its channels on one database. Thread-safe."""

    def __init__(self, client: Redis, keys: Keys, config: Config) -> None:
        super().__init__(client, keys, config)
        #: The jobs whose task is running now; a worker sets it.
        self.running: Callable[[], Collection[Job]] = tuple
        #: How many more wait for a free slot of the pool, or in the pool; a worker sets it.
        self.reserve: Callable[[], int] = int
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.probation: frozenset[str] = frozenset()
        self._lost_replies = LostReplies(self.lists, self._held_aside)

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
            self._send_returns()
            asked = monotonic()
            call = self.lists.claim(owner, lists, most, turn, confirm, starts)
            reply = self._run(call)
            if isinstance(reply, Exception):
                raise reply
            claims = self.lists.claims(call, lists, confirm, reply)
            if claims.registered:
                self.leases.claimed(owner, asked, [job for job, _ in claims.started])
            for claimed in claims.jobs:
                self._held[claimed.job] = False
            for job, still_ours in zip(confirm, claims.confirmed, strict=False):
                if still_ours is None:
                    self.let_go(job)
            return claims

    def take(self, job: Job, asked: float = math.inf) -> bool:
        """Note a job that a blocking read brought; False when it is another's by now.

        Arguments:
            asked: when the read began to wait (monotonic s).

        Raises:
            redis.exceptions.RedisError: that had to be looked up, and could not be.
        """
        with self._lock:
            if self._lost_replies.may_be_late(job, asked) and not self._is_there(job):
                return False
            self._held[job] = False
            return True

    def _is_there(self, job: Job) -> bool:
        """Whether the claim that a late reply speaks of is ours, or another one's by now.

        Another channel of this process, in another thread, found the job there and gave it back
        before this reply was read. By now a third one may have claimed it again, and its reply
        may wait to be read: that one has to look as well.
        """
        self._lost_replies.goes_back([job])
        try:
            self._run()  # one that was acked is held until the answer is read
            return self._lost_replies.is_there(job, self._held)
        except RedisError:
            self.doubt = True
            raise

    def delivered(self, job: Job) -> None:
        """Note that its consumer has the job: one that only waits now does not count as running.

        A suspect has done nobody harm yet; another may wait for its rate limit.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with self._lock:
            if (
                (self.leases.counts(job) or job == self.alone)
                and self.unstarted(job)
                and not (job in self._acks or self._held_aside.is_due(job))
            ):
                self.lists.waits(job)

    # -- suspects

    @property
    def busy(self) -> bool:
        """Whether something runs here; outside a worker, whatever is held and not acked may."""
        if self.running is tuple:
            return not self._held.keys() <= set(self._acks)
        return bool(self.running())

    def claim_alone(self, owner: str, queue_list: str) -> Claimed | None:
        """Claim the next suspect of a queue list, if nothing runs here; None if there is none.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what it may have claimed
                is found by ``reconcile``.
        """
        with self._lock:
            self.flush()
            self.leases.void()
            call = self.lists.claim_alone(owner, queue_list)
            try:
                reply = self.scripts.ask(call)
            except BaseException:
                self.doubt = True
                raise
            if reply[0] == b"none":
                self.probation -= {queue_list}
            if reply[0] != b"ok":
                return None
            self._alone = Job(owner, queue_list, reply[1], call.args[-1])
            self._held[self._alone] = False
            return Claimed(self._alone, earlier_of(reply[2]))

    # -- claims whose reply was lost

    def in_doubt(self) -> bool:
        """Whether ``reconcile`` has to look at the private lists."""
        return self.doubt or self._lost_replies.due

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """Give back what the private lists hold and nobody here does; the number of jobs.

        These are claims whose reply was lost, or is on its way to another thread's channel. What
        was settled here lately is settled again: a replica that was promoted had not seen it.
        """
        with self._lock:
            self.flush()
            # A doubt that comes up from here on asks for another look.
            self.doubt = False
            try:
                unknown = self._lost_replies.look(owner, lists, self._held)
                self._held.update(dict.fromkeys(unknown, False))
                back = self._acks.settle_again(unknown)
                self._lost_replies.goes_back(back)
                self.requeue(back)
                self.flush()
                self._forget_running(owner)
            except RedisError:
                self.doubt = True
                raise
            return len(back)

    def _forget_running(self, owner: str) -> None:
        """Claims that were settled or given back under a new id leave nothing that runs.

        What they left would forbid every other start, or keep suspects from their turn.
        """
        self.lists.forget_running(owner, {job.claim_id for job in self._held if job.owner == owner})

    # -- what was taken away

    def let_go(self, job: Job) -> None:
        """Forget a job that was taken away, and say so."""
        self.drop(job)
        announce(job, self.lists)
        with contextlib.suppress(RedisError), self._lock:  # the next doubt mends it
            self._forget_running(job.owner)

    def taken_away(self, owner: str) -> None:
        """An owner of ours was reaped: announce what runs, forget what was to be given back.

        Its acks are still sent, each for its old private list: one that comes before the
        reaper saves a second run, and one that comes later removes nothing of anybody else's.
        """
        with self._lock:
            self.leases.void()
            self._acks.forget_starts_of(owner)
            for waiting in self._returns.of(owner):
                self.drop(waiting)
            lost = {job for job in self.running() if job.owner == owner and job in self._held}
            self._acks.announced(lost)
        for job in lost:
            announce(job, self.lists)
