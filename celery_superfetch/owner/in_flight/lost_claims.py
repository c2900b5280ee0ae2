"""Claims whose reply was lost: what the private lists hold beyond what anybody here knows of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from time import monotonic

from redis.exceptions import RedisError

from ...model.job import Claimed, Counters, Job
from ...store.wire.clients import run_id
from .outbox import Outbox

LONGEST_READ = 60.0  # seconds after which no blocking read waits any more

#: Seconds from one look to the second: a network that stood still may bring a claim in between.
LATE_CLAIM = 60.0

#: Seconds for which settled jobs are remembered. A replica that is promoted lags by seconds.
SETTLED = 120.0


class LostClaims:
    def __init__(self, outbox: Outbox) -> None:
        self.outbox, self.jobs, self.lists = outbox, outbox.jobs, outbox.lists
        #: Which run of the server was told of what was settled; None: nobody has asked.
        self.run_id: str | None = None
        #: When a doubt that was cleared is looked into once more (monotonic s).
        self._second_look = math.inf
        #: What went back, and when that was last known (monotonic s): replies may yet speak of it.
        self._found: dict[tuple[str, str, int], float] = {}

    @property
    def due(self) -> bool:
        return self.outbox.doubt or monotonic() >= self._second_look

    @property
    def none_left(self) -> bool:
        """Whether the private lists hold nothing that nobody here knows, nor will."""
        return not self.outbox.doubt and self._second_look == math.inf

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """Give back what the private lists hold and nobody here does, since its reply was lost, or
        is on its way to another thread; the number of jobs. Where the server runs anew, what was
        settled lately is settled again: a promoted replica may not have seen it."""
        outbox = self.outbox
        with outbox.lock:
            outbox.flush()
            # A doubt that comes up from here on asks for another look.
            outbox.doubt = False
            try:
                run = run_id(outbox.client)
                back = self._look(owner, lists)
                for job in back:
                    self.jobs.add(job)
                if run != self.run_id:
                    back = self._settle_again(back)
                now = monotonic()
                self._found.update((job.trace, now) for job in back)
                outbox.requeue(back)
                outbox.flush()
                self.forget_running(owner)
                self.run_id = run
            except RedisError:
                outbox.doubt = True
                raise
            return len(back)

    def _look(self, owner: str, lists: Iterable[str]) -> list[Job]:
        """What the private lists hold and nobody here knows; a first look asks for a second."""
        unknown: list[Job] = []
        for name in lists:
            unknown += [self.lists.job(owner, name, raw) for raw in self._unknown(owner, name)]
        now = monotonic()
        self._found = {trace: at for trace, at in self._found.items() if now - at < LONGEST_READ}
        self._second_look = math.inf if now >= self._second_look else now + LATE_CLAIM
        return unknown

    def _unknown(self, owner: str, queue_list: str) -> list[bytes]:
        """What a private list holds beyond what is known here, the newest claim first."""
        place, unknown = (owner, queue_list), []
        known = Counter(job.payload for job in self.jobs if job[:2] == place)
        for job in self.lists.in_flight(owner, queue_list):
            known[job.payload] -= 1
            if known[job.payload] < 0:
                unknown.append(job.payload)
        return unknown

    def _settle_again(self, jobs: Iterable[Job]) -> list[Job]:
        """Ack those that were settled lately, by their bytes, as often as they were; the others."""
        since, others = monotonic() - SETTLED, []
        lately = Counter(trace for at, trace in self.outbox.lately if at > since)
        for job in jobs:
            if lately[job.trace] > 0:
                lately[job.trace] -= 1
                self.outbox.ack(Claimed(job, Counters()))
            else:
                others.append(job)
        return others

    def forget_running(self, owner: str) -> None:
        """Forget the record of claims that nobody holds: what runs would never again be alone."""
        with self.outbox.lock:
            held = {job.claim_id for job in self.jobs if job.owner == owner}
            self.lists.forget_running(owner, held)

    def is_ours(self, job: Job, asked: float) -> bool:
        """Whether the claim that a reply speaks of is still ours. Another thread's channel may have
        found the job and given it back since this one ``asked`` (monotonic s), and a third have
        claimed it again: its reply waits to be read, and it has to look as well."""
        if self._found.get(job.trace, -math.inf) < asked:
            return True
        self._found[job.trace], outbox = monotonic(), self.outbox
        try:
            outbox.flush()  # one that was acked is held until the answer is read
            return job.payload in self._unknown(job.owner, job.queue_list)
        except RedisError:
            outbox.doubt = True
            raise
