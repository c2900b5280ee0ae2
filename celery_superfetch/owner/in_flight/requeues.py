"""Jobs on their way back to their queues."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import count
from time import monotonic
from typing import NamedTuple

from redis.exceptions import RedisError

from ...model.job import Job
from ...store.private_lists import PrivateLists

logger = logging.getLogger(__name__)

#: Jobs given back by one script at most; bounds what it costs the server.
BATCH = 100

#: Seconds until jobs whose return the server refused are tried again.
REFUSED_INTERVAL = 5.0


class _Batch(NamedTuple):
    """What one script gives back: jobs of one owner and one queue list."""

    #: Tells the call from others, however often it is sent: that one is carried out once at most.
    number: int
    #: To which end of the queue.
    where: str
    jobs: list[Job]


class Returns:
    """What one process gives back. Not thread-safe: ``Settling`` sees to that.

    Arguments:
        expires: ms of x-expires for each queue list that has it.
    """

    def __init__(self, lists: PrivateLists, expires: Mapping[str, int]) -> None:
        self.lists = lists
        self.expires = expires
        #: Job -> to which end of its queue.
        self._waiting: dict[Job, str] = {}
        #: Those that were sent, and may have gone. They are sent again as they were: a job that
        #: went may be claimed by now, by another thread of this very process, and run.
        self._unanswered: list[_Batch] = []
        #: Those that the server refused, and when they are tried again (monotonic s).
        self._refused: dict[Job, str] = {}
        self._refused_until = 0.0
        self._numbers = count(1)

    def __len__(self) -> int:
        sent = sum(len(batch.jobs) for batch in self._unanswered)
        return sent + len(self._waiting) + len(self._refused)

    def __iter__(self) -> Iterator[Job]:
        for batch in self._unanswered:
            yield from batch.jobs
        yield from self._waiting
        yield from self._refused

    def __contains__(self, job: object) -> bool:
        sent = any(job in batch.jobs for batch in self._unanswered)
        return job in self._waiting or job in self._refused or sent

    def add(self, job: Job, where: str) -> None:
        """Give this one back with the next ``send``; one that waits already keeps its place."""
        if job not in self:
            self._waiting[job] = where

    def forget(self, job: Job) -> None:
        """Do not give this one back."""
        self._waiting.pop(job, None)
        self._refused.pop(job, None)
        for batch in self._unanswered:
            if job in batch.jobs:
                batch.jobs.remove(job)

    def send(self) -> list[Job]:
        """Give back what waits; the jobs that went, or were not there.

        Raises:
            redis.exceptions.RedisError: the server cannot be asked, all of it still waits. What
                it refused (a queue key of another type) is only logged: it must not stop claims
                and acks.
        """
        if self._refused and monotonic() >= self._refused_until:
            self._waiting, self._refused = {**self._refused, **self._waiting}, {}
        self._unanswered = [batch for batch in self._unanswered if batch.jobs] + self._batches()
        self._waiting = {}
        if not self._unanswered:
            return []
        calls = [
            self.lists.requeue(jobs, where, self.expires.get(jobs[0].queue_list, 0), number)
            for number, where, jobs in self._unanswered
        ]
        replies = self.lists.scripts.run_all(calls, errors=True)
        batches, self._unanswered = self._unanswered, []
        gone: list[Job] = []
        for (_, where, jobs), reply in zip(batches, replies, strict=True):
            if isinstance(reply, Exception):
                self._refuse(jobs, where, reply)
            else:
                gone += jobs
        return gone

    def _batches(self) -> list[_Batch]:
        """What waits, as it is sent."""
        groups: dict[tuple[str, str, str], list[Job]] = {}
        for job, where in self._waiting.items():
            groups.setdefault((job.owner, job.queue_list, where), []).append(job)
        return [
            _Batch(next(self._numbers), where, jobs[at : at + BATCH])
            for (_, _, where), jobs in groups.items()
            for at in range(0, len(jobs), BATCH)
        ]

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
            len(self),
            exc,
        )
