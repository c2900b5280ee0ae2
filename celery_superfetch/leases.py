"""Which jobs may start without asking: the server has just said what they would be told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from time import monotonic

from .job import Job

#: Seconds after a claim for which jobs may start without asking whether they are still ours. A
#: machine may stand still, and its clock with it, and nobody on it notices: the shorter this is,
#: the fewer jobs start late by that.
START_LEASE = 1.0

#: Heartbeats after the last that was heard, for the same. A verdict needs two of silence.
HEARTBEATS = 1.5


class Leases:
    """For the jobs of one process. Not thread-safe: ``Settling`` sees to that.

    Arguments:
        heartbeat_interval: seconds.
    """

    def __init__(self, heartbeat_interval: float) -> None:
        self._interval = heartbeat_interval
        #: How many slots of the pool are free, and whether there is one for the job that it gets
        #: now; a worker sets them.
        self.free: Callable[[], int] = int
        self.has_slot: Callable[[], bool] = bool
        #: The owner that claimed last, and until when its jobs may start (monotonic s).
        self._owner, self._until = "", 0.0
        #: Until when nobody can take us for dead; unknown where nobody tells of heartbeats.
        self._alive_until = math.inf
        #: Jobs that their claim has recorded as running -> until when they may start.
        self._recorded: dict[Job, float] = {}
        #: Those that a pool has.
        self._given: set[Job] = set()

    def heard(self, asked: float) -> None:
        """Note that the server has answered a heartbeat; any thread may say so.

        Arguments:
            asked: when it was sent (monotonic s).
        """
        self._alive_until = asked + HEARTBEATS * self._interval

    def claimed(self, owner: str, asked: float, recorded: Iterable[Job]) -> None:
        """Note that a claim found its owner registered.

        Arguments:
            asked: when it was sent (monotonic s).
            recorded: the jobs that it has recorded as running.
        """
        self._owner, self._until = owner, asked + START_LEASE
        for job in recorded:
            self._recorded[job] = self._until

    def void(self) -> None:
        """Something else may be true by now: let all ask that are not recorded."""
        self._until = 0.0

    def until(self, owner: str) -> float:
        """Until when jobs of ``owner`` may start once they are recorded; 0 when they must ask."""
        return self._limited(self._until) if owner == self._owner else 0.0

    def recorded(self, job: Job) -> float:
        """The same for a job that its claim has recorded, once."""
        return self._limited(self._recorded.pop(job, 0.0))

    def _limited(self, until: float) -> float:
        until = min(until, self._alive_until)
        return until if until > monotonic() else 0.0

    def counts(self, job: Job) -> bool:
        """Whether its claim has recorded it, and no pool has got it since; once."""
        return self._recorded.pop(job, None) is not None

    def give(self, job: Job) -> None:
        """Note that a pool may start the job whenever it comes to it."""
        self._given.add(job)

    def given(self, jobs: Iterable[Job]) -> list[Job]:
        """Those of ``jobs`` that may start, or have."""
        return [job for job in jobs if job in self._given]

    def take_back(self, job: Job) -> None:
        """Note that a pool does not have the job (any more)."""
        self._given.discard(job)

    def forget(self, job: Job) -> None:
        """It is settled, or somebody else's."""
        self._recorded.pop(job, None)
        self.take_back(job)
