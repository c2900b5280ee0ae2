"""The jobs in flight of one process: how they come, who has them, and how they leave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from ...model.certificate import Certificate
from ...model.job import Claimed, Job
from ...store.database import Database
from ...store.private_lists import Claims, earlier_of
from .jobs import IDLE, Move, State
from .lost_claims import LostClaims
from .outbox import Outbox
from .runner import CONSUMER, Runner


class InFlight(Outbox):
    """The jobs in flight of one process, for all its channels on one database. Thread-safe: acks
    come from the consumer's loop, from a pool's threads, and after the channel is closed. What asks
    the server raises ``RedisError`` where it cannot be asked."""

    def __init__(self, database: Database, runner: Runner = CONSUMER) -> None:
        super().__init__(database)
        self.runner = runner
        self.certificate = Certificate(self.config.heartbeat_interval)
        self.lost_claims = LostClaims(self)
        #: Queue lists with suspects on probation, as far as this process has heard.
        self.probation: frozenset[str] = frozenset()

    def claim(
        self,
        owner: str,
        lists: Sequence[str],
        most: int,
        turn: int,
        confirm: Sequence[Job] = (),
        starts: int = 0,
    ) -> Claims:
        """Send what waits to be settled and claim, in one round trip."""
        with self.lock:
            call = self.lists.claim(owner, lists, most, turn, confirm, starts)
            claims = self.lists.claims(call, lists, confirm, self.flush(call))
            for claimed in claims.jobs:
                self.jobs.add(claimed.job)
            self.jobs.recorded.update(job for job, _ in claims.started if job in self.jobs)
            gone = [job for job, kept in zip(confirm, claims.confirmed, strict=False) if not kept]
            self.requeue(job for job in reversed(gone) if job.owner != owner)
            for job in gone:
                if job.owner == owner:
                    self.lose(job)
            return claims

    def take(self, job: Job, asked: float = math.inf) -> bool:
        """Note a job of a read that began when it ``asked``; False if it is another's by now."""
        with self.lock:
            ours = self.lost_claims.is_ours(job, asked)
            if ours:
                self.jobs.add(job)
            return ours

    def claim_alone(self, owner: str, queue_list: str) -> Claimed | None:
        """Claim the next suspect of a queue list, if there is one and nothing runs here."""
        with self.lock:
            self.flush()
            # What is gathered begins unseen, unless its time has not come.
            for job, state in self.jobs.items():
                gathered = state is State.GATHERED and job not in self.aside
                if gathered or self.jobs.runs(job):
                    return None
            call = self.lists.claim_alone(owner, queue_list)
            [reply] = self.ask([call])
            if reply[0] == b"none":
                self.probation -= {queue_list}
            if reply[0] != b"ok":
                return None
            alone = self.jobs.alone = Job(owner, queue_list, reply[1], call.args[-1])
            self.jobs.add(alone)
            self.jobs.recorded.add(alone)
            return Claimed(alone, earlier_of(reply[2]))

    def wait(self, job: Job, asks: bool = True) -> None:
        """Its consumer hands the job over before it begins; one that does not ask gathers jobs."""
        with self.lock:
            self.jobs.move(job, Move.WAIT if asks else Move.GATHER)

    def set_aside(self, job: Job) -> None:
        """Note that a job waits in memory for its time; the next round trip moves it aside."""
        with self.lock:
            if job in self.jobs and job not in self.aside:
                self.jobs.recorded.discard(job)  # moving it takes its record away
                self.moves[job] = ""
                if job == self.jobs.alone:  # whoever decoded it lives; when it is due, others run
                    self.jobs.alone = None

    def delivered(self, job: Job) -> None:
        """Its consumer has the job: one that only waits now does not count as running."""
        if job in self.jobs.recorded:
            with self.lock:
                if self.may_start(job) and job not in self.moves:
                    self.unrecord(job)

    def unrecord(self, job: Job) -> None:
        with self.lock:
            self.jobs.recorded.discard(job)
            self._forget_start(job)
            self.lists.unrecord(job)

    def may_start(self, job: Job) -> bool:
        """Whether the job is ours and waits to be started; False for ever once it is not."""
        return self.jobs.get(job) in IDLE

    def start(self, job: Job, name: str = "") -> float:
        """Hand a job over to those who run it: until when it may begin (``clock``); 0: not now.
        Its record as running (under ``name``, its digest; none where it may be settled before it
        runs) is sent before, and waited for only if ETA jobs are to be moved aside."""
        with self.lock:
            until = self.certificate.until(job.owner)
            # While a reply is lost, the record may say that a suspect runs here.
            if not until or self.doubt or not self.may_start(job):
                return 0.0
            if job not in self.jobs.recorded:
                if name:
                    self._next.starting[job] = name
                try:
                    if any(self._next):
                        self.post()
                except (RedisError, OSError):  # its channel meets the same, and gives it back
                    self._forget_start(job)
                    return 0.0
            self.jobs.recorded.discard(job)
            self.jobs.move(job, Move.START)
            return until

    def end(self, job: Job) -> None:
        with self.lock:
            self.jobs.move(job, Move.END)

    def bring_back(self, job: Job) -> None:
        """Have a job in its private list, where whatever is done to it looks for it."""
        with self.lock:
            # The record of its start may be on its way: not to come in behind what removes it.
            with suppress(RedisError):  # what was refused has not come either
                self._exchange([])
            self.moves.pop(job, None)
            if job in self.aside:
                self.ask([self.lists.unhold(job.owner, job.queue_list, [job.claim_id])])
                self.aside.discard(job)

    def requeue_waiting(self, jobs: Iterable[Job], all_of_them: bool = True) -> list[Job]:
        """Give back, in this order, those whose consumers have not handed them over, and now cannot
        (not ``all_of_them``: but for those that wait for their time); returns those that went."""
        with self.lock:
            back = [job for job in jobs if self.jobs.get(job) is State.WAITING]
            if not all_of_them:
                back = [job for job in back if not (job in self.aside or job in self.moves)]
            self.requeue(back)
            return back

    def requeue_all(self) -> None:
        """Give back whatever is still held, newest claims first."""
        with self.lock:
            for job in self.jobs:  # the pool has ended
                self.end(job)
            self.requeue(reversed(list(self.jobs)))

    def lose(self, job: Job) -> None:
        self.drop(job)
        self.announce(job)
        with suppress(RedisError):  # the next doubt mends it
            self.lost_claims.forget_running(job.owner)

    def lose_all(self, owner: str) -> None:
        """An owner of ours is none any more: announce what runs, give back the rest, if it is still
        there. Acks still go to its old private lists: one before the reaper saves a second run, a
        later one removes nothing."""
        with self.lock:
            ours = [job for job in self.jobs if job.owner == owner]
            for job in ours:
                self._forget_start(job)
            self.requeue(job for job in reversed(ours) if self.jobs.get(job) is State.WAITING)
            lost = [job for job in ours if self.jobs.runs(job)]
            self._no_news.update(lost)
        for job in lost:
            self.announce(job)
