"""Claims whose reply was lost: what the private lists hold beyond what anybody here knows of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from time import monotonic

from ...model.job import Job
from ...store.private_lists import PrivateLists
from .held import Held

#: Seconds after which no blocking read can wait any more (its block and what it may be overdue).
LONGEST_READ = 60.0

#: Seconds after a doubt was cleared at which it is looked into once more: a network that stood
#: still may have brought another claim to the server since, whose reply nobody waits for.
LATE_CLAIM = 60.0


class LostReplies:
    """Looks for claims that nobody here heard of. Not thread-safe: ``InFlight`` sees to that."""

    def __init__(self, lists: PrivateLists, held: Held) -> None:
        self.lists = lists
        self.held = held
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

    def look(self, owner: str, lists: Iterable[str], known: Collection[Job]) -> list[Job]:
        """What the private lists hold and is not among ``known``; a first look asks for a second.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        unknown: list[Job] = []
        for name in lists:
            for job in self.held.look(owner, name):
                self.held.forget(job)
            expected = Counter(
                job.payload for job in known if job[:2] == (owner, name) and job not in self.held
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

    def goes_back(self, jobs: Iterable[Job]) -> None:
        """Note that these were found, and are given back: replies may yet speak of them."""
        now = monotonic()
        self._found.update((job.trace, now) for job in jobs)

    def may_be_late(self, job: Job, asked: float) -> bool:
        """Whether a reply may speak of a claim that was found, and given back, before it was read.

        Arguments:
            asked: when whoever reads it began to wait (monotonic s).
        """
        return self._found.get(job.trace, -math.inf) >= asked

    def is_there(self, job: Job, known: Collection[Job]) -> bool:
        """Whether the private list has one copy more of a job than is among ``known``.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked.
        """
        copies = [j.payload for j in self.lists.in_flight(job.owner, job.queue_list)]
        expected = sum(job[:3] == other[:3] and other not in self.held for other in known)
        return copies.count(job.payload) > expected
