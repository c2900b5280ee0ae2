"""Run counts for metrics: how runs of jobs end, and how long they take, by queue list and task.

``worker/run_counts.py`` fills a ``Tally`` in the memory of a worker's main process at the end of
each run. The worker's maintenance thread moves it to Redis with ``Runs.add`` (a *report*), as often
as a heartbeat is sent, and once more when the worker stops. The console's metrics and its page read
the sums (``counts``).

If the process dies, the runs since its last report are never counted. A script that the server has
begun adds all of its counters. A report is counted once: if its reply was lost, the worker sends it
again, and the server knows its number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from math import inf
from typing import NamedTuple

from ..model.records import whole
from .database import Structure
from .stats import TAB, Times

#: Ends of a run: it returned, raised, was retried (Celery's ``Retry``), or was ignored or rejected
#: on purpose (``Ignore``, ``Reject``).
RUN_ENDS = SUCCEEDED, FAILED, RETRIED, REJECTED = "succeeded", "failed", "retried", "rejected"

#: Upper bounds (s) of the histogram of the time that runs take.
RUN_BUCKETS = (0.005, 0.025, 0.1, 0.5, *map(float, (1, 5, 15, 60, 300, 1800, 7200)), inf)
BUCKET_LABELS = [
    f"{bound:g}" for bound in RUN_BUCKETS
]  # the bounds, in the names of their counters

#: Pairs of queue list and task that a worker counts separately between two reports. Beyond this
#: number, runs of a new pair are counted without a task; beyond twice this number, without a queue
#: list as well. (``worker/run_counts.py`` uses it.)
PAIRS_MAX = 500

#: Rows on the server at most: a row is a counter of ``RUN_ENDS``, or the whole histogram of a task.
#: Beyond this number, a new row has no task and no queue list. A thousand rows are some 100 kB.
ROWS_MAX = 5000
#: Counters that one script adds to: a worker of many queues and tasks has thousands.
COUNTERS_PER_SCRIPT = 250
#: ms after which a row that has not grown is deleted: queues and tasks come and go.
SILENT_MS = 7 * 86_400_000
#: ms for which the server knows the latest report of a worker. A report whose reply was lost, and
#: that is sent again later than that, counts twice.
REMEMBER_MS = 86_400_000


class Tally(Counter[tuple[str, str, str]]):
    """Counters of runs: the three parts of a counter's name -> its growth since the last report.

    - (one of ``RUN_ENDS``, queue list, task): runs that ended so.
    - ("seconds", an upper bound of ``BUCKET_LABELS``, task): runs that took as long, for the
    histogram.
    - ("seconds", "us", task): the sum of the times of all runs, in microseconds.
    """

    def count_run(self, how: str, queue_list: str, task: str, seconds: float) -> None:
        """Count the end of one run. ``how``: one of ``RUN_ENDS``; ``seconds``: the time it took."""
        self[how, queue_list, task] += 1
        self["seconds", BUCKET_LABELS[bisect_left(RUN_BUCKETS, seconds)], task] += 1
        self["seconds", "us", task] += round(seconds * 1e6)


class RunReport(NamedTuple):
    """Some counters of a worker, which one script adds to those of all workers."""

    worker: str  # any name that no other worker has
    number: int  # one more than that of the worker's report before
    growths: list[tuple[tuple[str, str, str], int]]  # (name of a counter, its growth)


class RunSums(NamedTuple):
    """The sums of all workers."""

    ends: dict[tuple[str, str, str], int]  # (how, queue list, task) -> runs
    times: dict[str, Times]  # by task


class Runs(Structure):
    """``superfetch:runs``: the counters of all workers. ``superfetch:runs:rows`` limits their
    number. A report adds many runs at once, so that a job costs no command."""

    def add(self, report: RunReport) -> None:
        """Add a report to the counters of all workers, and its ended runs to the charts. If this
        raises, it may have been added. The caller sends the same report again before its next one:
        the server adds it once, unless a day has passed meanwhile."""
        args: list[str | int] = [report.worker, report.number, REMEMBER_MS, SILENT_MS, ROWS_MAX]
        args += [len(BUCKET_LABELS) + 1, *BUCKET_LABELS, "us"]
        for name, growth in report.growths:
            args += [TAB.join(name), growth]
        keys = [self.keys.runs, self.keys.run_rows, self.keys.reports]
        keys += [self.keys.minutes, self.keys.minute_rows]
        self.scripts.run("count_runs", keys, args)

    def counts(self) -> RunSums:
        """Return the sums of all workers; rows that cannot be read are left out."""
        ends, times = {}, defaultdict[str, Counter[str]](Counter)
        counters = self._read(self.client.hgetall, self.keys.runs, empty={})
        for name, number in counters.items():
            how, *labels = name.decode(errors="replace").split(TAB, 2)
            if how in RUN_ENDS and len(labels) == 2:
                ends[how, labels[0], labels[1]] = whole(number)
            elif how == "seconds" and len(labels) == 2:
                times[labels[1]][labels[0]] = whole(number)
        by_task = {
            task: Times.read(RUN_BUCKETS, row, row["us"] / 1e6)
            for task, row in sorted(times.items())
        }
        return RunSums(ends, by_task)
