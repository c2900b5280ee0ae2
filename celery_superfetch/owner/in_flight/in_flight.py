"""How jobs come to this process and how it loses them: claims, lost replies, jobs taken away."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence

from redis.exceptions import RedisError

from ...model.job import Claimed, Job
from ...store.database import Database
from ...store.private_lists import Claims, earlier_of
from ...store.registry import run_id
from .losses import announce
from .lost_claims import LostReplies
from .runner import CONSUMER, Runner
from .settling import Settling, Stage


class InFlight(Settling):
    """The jobs in flight of one process, for all its channels on one database. Thread-safe."""

    def __init__(self, database: Database, runner: Runner = CONSUMER) -> None:
        super().__init__(database)
        self.runner = runner
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.probation: frozenset[str] = frozenset()
        #: Which run of the server was told of what was settled; None: nobody has asked.
        self.run_id: str | None = None
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
            call = self.lists.claim(owner, lists, most, turn, confirm, starts)
            reply = self._run(call)
            if isinstance(reply, Exception):
                raise reply
            claims = self.lists.claims(call, lists, confirm, reply)
            self._recorded.update(job for job, _ in claims.started)
            for claimed in claims.jobs:
                self._held[claimed.job] = Stage.CLAIMED
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
            self._held[job] = Stage.CLAIMED
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
        if job not in self._recorded and job != self._alone:
            return
        with self._lock:
            if self.may_start(job) and not (job in self._acks or self._held_aside.is_due(job)):
                self.unrecord(job)

    def unrecord(self, job: Job) -> None:
        """Have a job that counts as running count as waiting.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        with self._lock:
            self._recorded.discard(job)
            self._acks.forget_start(job)
            self.client.hdel(self.keys.running(job.owner), job.claim_id)

    # -- suspects

    @property
    def unsettled(self) -> bool:
        """Whether something is held and not acked."""
        return not self._held.keys() <= set(self._acks)

    def claim_alone(self, owner: str, queue_list: str) -> Claimed | None:
        """Claim the next suspect of a queue list, if nothing runs here; None if there is none.

        Raises:
            redis.exceptions.RedisError: the server could not be asked; what it may have claimed
                is found by ``reconcile``.
        """
        with self._lock:
            self.flush()
            # By another thread, since this one looked. What is acked has ended. What is gathered
            # begins unseen, with the suspect perhaps, unless its time has not come.
            begun = {
                job
                for job, stage in self._held.items()
                if stage is Stage.STARTED
                or (stage is Stage.GATHERED and job not in self._held_aside)
            }
            if begun - set(self._acks):
                return None
            call = self.lists.claim_alone(owner, queue_list)
            self._recorded.clear()  # it is alone in the record, too
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
            self._held[self._alone] = Stage.CLAIMED
            return Claimed(self._alone, earlier_of(reply[2]))

    # -- claims whose reply was lost

    def in_doubt(self) -> bool:
        """Whether ``reconcile`` has to look at the private lists."""
        return self.doubt or self._lost_replies.due

    @property
    def knows_all(self) -> bool:
        """Whether the private lists hold nothing that nobody here knows, nor will."""
        return not self.doubt and not self._lost_replies.looks_again

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """Give back what the private lists hold and nobody here does; the number of jobs.

        These are claims whose reply was lost, or is on its way to another thread's channel. After
        a failover, what was settled here lately is settled again: a replica that was promoted had
        not seen it. A server that was told has forgotten nothing: what it has is another job, of
        the same bytes.
        """
        with self._lock:
            self.flush()
            # A doubt that comes up from here on asks for another look.
            self.doubt = False
            try:
                run = run_id(self.client)
                unknown = self._lost_replies.look(owner, lists, self._held)
                self._held.update(dict.fromkeys(unknown, Stage.CLAIMED))
                back = unknown if run == self.run_id else self._acks.settle_again(unknown)
                self._lost_replies.goes_back(back)
                self.requeue(back)
                self.flush()
                self._forget_running(owner)
                self.run_id = run
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
        """An owner of ours was reaped: announce what runs, forget the rest.

        Its acks are still sent, each for its old private list: one that comes before the
        reaper saves a second run, and one that comes later removes nothing of anybody else's.
        """
        with self._lock:
            self._acks.forget_starts_of(owner)
            ours = {job: stage for job, stage in self._held.items() if job.owner == owner}
            for job, stage in ours.items():
                if stage is Stage.WAITS or job in self._returns:
                    self.drop(job)
            lost = [job for job, stage in ours.items() if stage is Stage.STARTED]
            self._acks.announced(lost)
        for job in lost:
            announce(job, self.lists)
