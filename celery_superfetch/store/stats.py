"""What has happened since there is this database, counted: for ``status`` and metrics.

``superfetch:stats``: totals by name, and by name, queue list and task; the passes; and how long it
took from the last heartbeat of a dead owner until its jobs were back. Scripts count most of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..model.job import Job
from .database import Structure

#: Between the parts of a counter's name; a total has none.
TAB = "\t"

#: Upper bounds of what recoveries took (s). A death on one host is seen within seconds, one
#: elsewhere by its connections, or after ``owner_ttl``.
BUCKETS = (1, 2, 5, 10, 15, 30, 60, 90, 120, 300, 900, 3600)


class Counts(NamedTuple):
    """All counters, of one moment."""

    totals: dict[str, int]
    #: (``recovered``, ``killed``, ``requeued`` or ``ownership_lost``, queue list, task) -> jobs.
    #: What was one too many is under an empty task, and beyond that under an empty list.
    jobs: dict[tuple[str, str, str], int]
    #: ``number``, ``ms``, ``owners`` and ``errors`` of all passes.
    passes: dict[str, int]
    #: Upper bound (s; the last one is infinite) -> recoveries that took no longer.
    recoveries: dict[float, int]
    recovery_seconds: float


class Stats(Structure):
    """``superfetch:stats``."""

    def lost(self, job: Job) -> None:
        """Count a job that its owner lost to another."""
        self.scripts.run("lost", [self.keys.stats], [job.queue_list, job.payload])

    def read(self) -> Counts:
        """All counters; not more than some thousands (``tally.lua``)."""
        found: Any = self.client.hgetall(self.keys.stats)
        rows = {tuple(k.decode(errors="replace").split(TAB, 2)): int(v) for k, v in found.items()}
        times = {name[1]: n for name, n in rows.items() if name[0] == "recovery" and name[1:]}
        total, recoveries = 0, {}
        for bound in (*BUCKETS, float("inf")):
            total += times.get(f"{bound:g}", 0)
            recoveries[float(bound)] = total
        return Counts(
            {name[0]: n for name, n in sorted(rows.items()) if len(name) == 1},
            {(what, *more): n for (what, *more), n in sorted(rows.items()) if len(more) == 2},
            {name[1]: n for name, n in rows.items() if name[0] == "pass" and name[1:]},
            recoveries,
            times.get("ms", 0) / 1000,
        )


def noted_recovery(ms: int) -> Iterator[tuple[str, int]]:
    """The counters of a recovery that took so long, and by how much they grow."""
    at = bisect_left(BUCKETS, ms / 1000)
    bound = f"{BUCKETS[at]:g}" if at < len(BUCKETS) else "inf"
    yield f"recovery{TAB}{bound}", 1
    yield f"recovery{TAB}ms", ms
