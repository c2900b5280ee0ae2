"""Jobs on their way back to their queues, until nobody can ask for them any more."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from time import monotonic

from redis.exceptions import RedisError

from .held import Held
from .job import Job
from .private_list import PrivateLists
from .scripts import Scripts

logger = logging.getLogger(__name__)

#: Jobs given back by one script at most; bounds what it costs the server.
BATCH = 100

#: Seconds for which a claim that was given back is remembered as such. A pool's process that has
#: the job asks within ``start.START_WAIT`` (10 s) and two waits for a reply (5 s each); a network
#: that stood still brings the same call again within the time that TCP tries, some minutes.
CALLED_OFF = 300.0

#: What ``requeue.lua`` answers for a job that its pool has started.
STARTED = 2

#: Seconds until jobs whose return the server refused are tried again.
REFUSED_INTERVAL = 5.0


class Returns:
    """What one process gives back. Not thread-safe: ``Settling`` sees to that.

    Arguments:
        expires: ms of x-expires for each queue list that has it.
    """

    def __init__(
        self, lists: PrivateLists, scripts: Scripts, expires: Mapping[str, int], held: Held
    ) -> None:
        self.lists = lists
        self.held = held
        self.scripts = scripts
        self.expires = expires
        #: Job -> to which end of its queue.
        self._waiting: dict[Job, str] = {}
        #: Those that the server refused, and when they are tried again (monotonic s).
        self._refused: dict[Job, str] = {}
        self._refused_until = 0.0
        #: Jobs given back, and when (monotonic s).
        self._called_off: deque[tuple[float, Job]] = deque()
        #: When one was called off last that a pool had (monotonic s).
        self._recalled = -math.inf

    def __len__(self) -> int:
        return len(self._waiting) + len(self._refused)

    def __iter__(self) -> Iterator[Job]:
        return iter([*self._waiting, *self._refused])

    def add(self, jobs: Iterable[Job], where: str) -> None:
        """Give these back with the next ``send``; one that waits already keeps its place."""
        for job in jobs:
            if job not in self._waiting and job not in self._refused:
                self._waiting[job] = where

    def forget(self, job: Job) -> None:
        """Do not give this one back."""
        self._waiting.pop(job, None)
        self._refused.pop(job, None)

    def of(self, owner: str) -> list[Job]:
        """What waits to be given back under one owner's name."""
        return [job for job in self if job.owner == owner]

    def send(self, in_pool: Collection[Job]) -> dict[Job, bool]:
        """Give back what waits; for each that was looked at, whether its pool has started it.

        Arguments:
            in_pool: jobs that a pool has and may start at this moment.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked, all of it still waits. What
                it refused (a queue key of another type) is only logged: it must not stop claims
                and acks.
        """
        if self._refused and monotonic() >= self._refused_until:
            self._waiting, self._refused = {**self._refused, **self._waiting}, {}
        if not self._waiting:
            return {}
        groups: dict[tuple[str, str, str], list[Job]] = {}
        for job, where in self._waiting.items():
            groups.setdefault((job.owner, job.queue_list, where), []).append(job)
        batches = [
            (where, jobs[at : at + BATCH])
            for (_, _, where), jobs in groups.items()
            for at in range(0, len(jobs), BATCH)
        ]
        calls, at = [], []
        for where, jobs in batches:
            calls += self.held.unhold(jobs)
            at.append(len(calls))
            expires = self.expires.get(jobs[0].queue_list, 0)
            calls.append(self.lists.requeue(jobs, where, expires, in_pool))
        answers = self.scripts.run_all(calls, errors=True)
        replies = [answers[index] for index in at]
        self._waiting = {}
        started: dict[Job, bool] = {}
        for (where, jobs), reply in zip(batches, replies, strict=True):
            if isinstance(reply, Exception):
                self._refuse(jobs, where, reply)
            else:
                for job, answer in zip(jobs, reply, strict=True):
                    started[job] = answer == STARTED
                    if not started[job]:
                        self._call_off(job, job in in_pool)
        return started

    def _call_off(self, job: Job, in_pool: bool) -> None:
        now = monotonic()
        self._called_off.append((now, job))
        if in_pool:
            self._recalled = now

    @property
    def pool_may_ask(self) -> bool:
        """Whether a pool may still come to a job that was called off, and ask for it."""
        return monotonic() - self._recalled < CALLED_OFF

    def long_called_off(self) -> list[Job]:
        """Jobs that nobody can ask about any more, once; their marks may go."""
        found = []
        while self._called_off and monotonic() - self._called_off[0][0] > CALLED_OFF:
            found.append(self._called_off.popleft()[1])
        return found

    def _refuse(self, jobs: list[Job], where: str, exc: Exception) -> None:
        self._refused.update(dict.fromkeys(jobs, where))
        self._refused_until = monotonic() + REFUSED_INTERVAL
        logger.error(
            "%d jobs could not be given back to queue list %s: %s. They are safe in the private "
            "list; it is tried again in %g s, and by the reaper.",
            len(jobs),
            jobs[0].queue_list,
            exc,
            REFUSED_INTERVAL,
        )

    def warn(self, exc: RedisError) -> None:
        """Say that the server could not be asked."""
        logger.warning(
            "%d jobs could not be given back to their queues yet (%s). They are safe in the "
            "private lists and go back when the server answers, or by the reaper.",
            len(self._waiting),
            exc,
        )
