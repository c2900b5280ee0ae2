"""Run counts: how jobs end, and how long they run, by queue list and task. Each worker's
maintenance adds its tally at the pace of its heartbeats, and the console reads the sums. If the
process dies, the runs since its last report are not counted."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import islice
from math import inf
from typing import NamedTuple

from ..model.records import whole
from .database import Structure
from .history import TAB, Times

#: How a run ends: it returned, raised, sent itself again, or was ignored or rejected on purpose.
ENDS = SUCCEEDED, FAILED, RETRIED, REJECTED = "succeeded", "failed", "retried", "rejected"

#: Upper bounds (s) of what runs took.
BUCKETS = (0.005, 0.025, 0.1, 0.5, *map(float, (1, 5, 15, 60, 300, 1800, 7200)), inf)
LABELS = [f"{bound:g}" for bound in BUCKETS]  # as their counters have them

#: Pairs of queue list and task that one worker counts between two reports; those of more have no
#: task, and of twice as many no queue list.
MOST = 500

#: Rows on the server; beyond them a new one has neither. A thousand are some 100 kB.
MOST_ROWS = 5000
COUNTED = 500  # counters that one script adds to: a worker of many queues and tasks has thousands
SILENT_MS = 7 * 86_400_000  # after which a row goes: queues and tasks come and go


class Tally(Counter[tuple[str, str, str]]):
    """Counters of runs (the parts of their names), and by how much they grow."""

    def note(self, how: str, queue_list: str, task: str, seconds: float) -> None:
        self[how, queue_list, task] += 1
        self["seconds", LABELS[bisect_left(BUCKETS, seconds)], task] += 1
        self["seconds", "us", task] += round(seconds * 1e6)


class RunCounts(NamedTuple):
    """The sums of all workers."""

    ends: dict[tuple[str, str, str], int]  # (how, queue list, task) -> runs
    times: dict[str, Times]  # by task


class Runs(Structure):
    """``superfetch:runs``: what all workers have counted, for metrics, bounded by means of
    ``superfetch:runs:rows``. They add to it at the pace of their heartbeats, so that no job costs a
    command."""

    def add(self, tally: dict[tuple[str, str, str], int]) -> None:
        """Move a tally to the server, some counters in a script; those that are left when it raises
        were not added, but for some of which the reply was lost."""
        bounds: list[str | int] = [SILENT_MS, MOST_ROWS, len(LABELS) + 1, *LABELS, "us"]
        while tally:
            some = [*islice(tally.items(), COUNTED)]
            args = [part for name, growth in some for part in (TAB.join(name), growth)]
            self.scripts.run("count_runs", [self.keys.runs, self.keys.run_rows], [*bounds, *args])
            for name, _ in some:
                del tally[name]

    def counts(self) -> RunCounts:
        """Return the sums of all workers; rows that cannot be read are left out."""
        ends, times = {}, defaultdict[str, Counter[str]](Counter)
        for name, number in self.client.hgetall(self.keys.runs).items():
            how, *labels = name.decode(errors="replace").split(TAB, 2)
            if how in ENDS and len(labels) == 2:
                ends[how, labels[0], labels[1]] = whole(number)
            elif how == "seconds" and len(labels) == 2:
                times[labels[1]][labels[0]] = whole(number)
        by_task = {
            task: Times.read(BUCKETS, row, row["us"] / 1e6) for task, row in sorted(times.items())
        }
        return RunCounts(ends, by_task)
