"""Run counts for metrics: how runs of jobs end, and how long they take, by queue list and task.

``worker/run_counts.py`` fills a ``Tally`` in a worker's memory at the end of each run. The worker's
maintenance thread moves it to Redis with ``Runs.add``, as often as a heartbeat is sent, and once
more when the worker stops. The console's metrics and its page read the sums (``counts``).

If the process dies, the runs since its last report are not counted. A script that the server has
begun adds all of its counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import islice
from math import inf
from typing import NamedTuple

from ..model.records import whole
from .database import Structure
from .history import TAB, Times

#: How a run ends: it returned, raised, was retried (Celery's ``Retry``), or was ignored or rejected
#: on purpose (``Ignore``, ``Reject``).
ENDS = SUCCEEDED, FAILED, RETRIED, REJECTED = "succeeded", "failed", "retried", "rejected"

#: Upper bounds (s) of the histogram of the time that runs take.
BUCKETS = (0.005, 0.025, 0.1, 0.5, *map(float, (1, 5, 15, 60, 300, 1800, 7200)), inf)
LABELS = [f"{bound:g}" for bound in BUCKETS]  # the bounds, in the names of their counters

#: Pairs of queue list and task that a worker counts apart between two reports. Beyond so many, runs
#: of a new pair are counted without a task; beyond twice as many, without a queue list as well.
MOST = 500

#: Rows on the server: a row is a counter of ``ENDS``, or the whole histogram of a task. Beyond so
#: many, a new row has no task and no queue list. A thousand rows are some 100 kB.
MOST_ROWS = 5000
COUNTED = 500  # counters that one script adds to: a worker of many queues and tasks has thousands
#: ms without growth after which a row is deleted: queues and tasks come and go.
SILENT_MS = 7 * 86_400_000


class Tally(Counter[tuple[str, str, str]]):
    """Counters of runs, by the three parts of their names, and by how much each has grown:
    (end, queue list, task), and for the histogram ("seconds", bound, task)."""

    def note(self, how: str, queue_list: str, task: str, seconds: float) -> None:
        """Count the end of one run."""
        self[how, queue_list, task] += 1
        self["seconds", LABELS[bisect_left(BUCKETS, seconds)], task] += 1
        self["seconds", "us", task] += round(seconds * 1e6)


class RunCounts(NamedTuple):
    """The sums of all workers."""

    ends: dict[tuple[str, str, str], int]  # (how, queue list, task) -> runs
    times: dict[str, Times]  # by task


class Runs(Structure):
    """``superfetch:runs``: the counters of all workers. ``superfetch:runs:rows`` limits their
    number. A report adds many runs at once, so that a job costs no command."""

    def add(self, tally: dict[tuple[str, str, str], int]) -> None:
        """Move a tally to the server, some counters with each script. The caller must not change it
        meanwhile. If this raises, the counters that are left in the tally were not added; but if
        the reply to a script was lost, its counters were added and are left as well."""
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
