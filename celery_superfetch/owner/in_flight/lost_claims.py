"""Claims whose reply was lost: what the private lists hold beyond what anybody here knows of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from time import monotonic

from redis.exceptions import RedisError

from ...model.job import Job
from ...store.private_lists import PrivateLists
from ...store.running import RunningJobs
from ...store.wire.clients import run_id
from .jobs import Jobs
from .outbox import Outbox

#: Seconds after which no blocking read can wait any more (its block and what it may be overdue).
LONGEST_READ = 60.0

#: Seconds after a doubt was cleared at which it is looked into once more: a network that stood
#: still may have brought another claim to the server since, whose reply nobody waits for.
LATE_CLAIM = 60.0


class LostClaims:
    """Looks for claims that nobody here heard of. Not thread-safe: ``InFlight`` sees to that."""

    def __init__(self, lists: PrivateLists, jobs: Jobs, outbox: Outbox) -> None:
        self.lists = lists
        self.jobs = jobs
        self.outbox = outbox
        #: Which run of the server was told of what was settled; None: nobody has asked.
        self.run_id: str | None = None
        #: When a doubt that was cleared is looked into once more (monotonic s).
        self._second_look = math.inf
        #: What was found and goes back, and when that was last known (monotonic s).
        self._found: dict[tuple[str, str, int], float] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to look once more, although nobody is in doubt."""
        return monotonic() >= self._second_look

    @property
    def looks_again(self) -> bool:
        """Whether it will."""
        return self._second_look < math.inf

    def _look(self, owner: str, lists: Iterable[str]) -> list[Job]:
        """What the private lists hold and nobody here knows; a first look asks for a second."""
        unknown: list[Job] = []
        aside = self.outbox.aside
        for name in lists:
            for job in aside.look(owner, name):
                aside.forget(job)
            expected = Counter(
                job.payload for job in self.jobs if job[:2] == (owner, name) and job not in aside
            )
            for payload in (job.payload for job in self.lists.in_flight(owner, name)):
                if expected[payload] > 0:
                    expected[payload] -= 1
                else:
                    unknown.append(self.lists.job(owner, name, payload))
        now = monotonic()
        self._found = {trace: at for trace, at in self._found.items() if now - at < LONGEST_READ}
        self._second_look = math.inf if now >= self._second_look else now + LATE_CLAIM
        return unknown

    def reconcile(self, owner: str, lists: Iterable[str]) -> int:
        """Give back what the private lists hold and nobody here does; the number of jobs.

        These are claims whose reply was lost, or is on its way to another thread's channel. After
        a failover, what was settled here lately is settled again: a replica that was promoted had
        not seen it. A server that was told has forgotten nothing: what it has is another job, of
        the same bytes.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        outbox = self.outbox
        outbox.send()
        # A doubt that comes up from here on asks for another look.
        outbox.doubt = False
        try:
            run = run_id(self.lists.client)
            back = self._look(owner, lists)
            for job in back:
                self.jobs.add(job)
            if run != self.run_id:
                back = outbox.settle_again(back)
            self._goes_back(back)
            outbox.requeue(back, "front")
            outbox.send()
            self.forget_running(owner)
            self.run_id = run
        except RedisError:
            outbox.doubt = True
            raise
        return len(back)

    def forget_running(self, owner: str) -> None:
        """Claims that were settled or given back under a new id leave nothing that runs.

        What they left would forbid every other start, or keep suspects from their turn.
        """
        held = {job.claim_id for job in self.jobs if job.owner == owner}
        RunningJobs(self.lists.database).forget(owner, held)

    def _goes_back(self, jobs: Iterable[Job]) -> None:
        """Note that these were found, and are given back: replies may yet speak of them."""
        now = monotonic()
        self._found.update((job.trace, now) for job in jobs)

    def is_ours(self, job: Job, asked: float) -> bool:
        """Whether the claim that a reply speaks of is ours, or another one's by now.

        Another channel of this process, in another thread, may have found the job and given it back
        before this reply was read. By now a third one may have claimed it again, and its reply
        may wait to be read: that one has to look as well.

        Arguments:
            asked: when whoever reads it began to wait (monotonic s).

        Raises:
            redis.exceptions.RedisError: that had to be looked up, and could not be.
        """
        if self._found.get(job.trace, -math.inf) < asked:
            return True
        self._goes_back([job])
        try:
            self.outbox.send(returns=False)  # one that was acked is held until the answer is read
            copies = [j.payload for j in self.lists.in_flight(job.owner, job.queue_list)]
        except RedisError:
            self.outbox.doubt = True
            raise
        aside = self.outbox.aside
        known = sum(job[:3] == other[:3] and other not in aside for other in self.jobs)
        return copies.count(job.payload) > known
