"""Jobs on their way back to their queues: what was sent once is sent again as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

from ...model.job import Job
from ...store.private_lists import PrivateLists
from ...store.wire.scripts import Call
from .jobs import Jobs, State

logger = logging.getLogger(__name__)

BATCH = 100  # jobs that one script moves at most: it keeps everybody else waiting

REFUSED_INTERVAL = 5.0  # seconds until the server is asked again where it refused


class _Batch(NamedTuple):
    number: int  # however often it is sent, it is carried out once at most
    where: str  # to which end of the queue
    jobs: list[Job]  # of one owner and one queue list


class Returns:
    """Who goes back, and to which end of its queue. Not thread-safe: the outbox sees to that."""

    def __init__(self, jobs: Jobs, lists: PrivateLists) -> None:
        self._jobs = jobs
        self._lists = lists
        self.expires: dict[str, int] = {}  # ms of x-expires for each queue list that has it
        #: Job -> to which end of its queue it goes back. Who is not RETURNING any more does not.
        self._back: dict[Job, str] = {}
        #: Those that were sent, and may have gone. They are sent again as they were: a job that
        #: went may be claimed by now, by another thread of this very process, and run.
        self._unanswered: list[_Batch] = []
        #: Those that the server refused, and when they are tried again (monotonic s).
        self._refused: dict[Job, str] = {}
        self._refused_until = 0.0
        self._numbers = count(1)

    def add(self, job: Job, where: str) -> None:
        self._back[job] = where

    def calls(self) -> list[Call]:
        if self._refused and monotonic() >= self._refused_until:
            self._back, self._refused = {**self._refused, **self._back}, {}
        new = [_Batch(next(self._numbers), *batch) for batch in batches(self._back)]
        self._back = {}
        self._unanswered = [
            batch._replace(jobs=left)
            for batch in self._unanswered + new
            if (left := [job for job in batch.jobs if self._jobs.get(job) is State.RETURNING])
        ]
        return [
            self._lists.requeue(jobs, where, self.expires.get(jobs[0].queue_list, 0), number)
            for number, where, jobs in self._unanswered
        ]

    def read(self, replies: Sequence[Any]) -> Iterator[Job]:
        """The jobs that have gone, by the answers to all calls; what was refused waits."""
        sent, self._unanswered = self._unanswered, []
        for (_, where, jobs), reply in zip(sent, replies, strict=True):
            if not isinstance(reply, Exception):
                yield from jobs
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


def batches(jobs: Mapping[Job, str]) -> Iterator[tuple[str, list[Job]]]:
    """Jobs of one private list that go the same way, not too many at once."""
    groups: dict[tuple[str, str, str], list[Job]] = {}
    for job, where in jobs.items():
        groups.setdefault((job.owner, job.queue_list, where), []).append(job)
    for (_, _, where), group in groups.items():
        for at in range(0, len(group), BATCH):
            yield where, group[at : at + BATCH]
