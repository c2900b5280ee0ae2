"""Charts of an app's database as one plain document: how many runs ended and how, how many jobs
were recovered, dead-lettered and waiting, minute by minute; and how long recoveries took.

`superfetch charts` and the page call ``charts_of``. It only reads: a death leaves nothing behind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ..inspector import (
    COUNTED,
    ONE_MINUTE,
    SLOTS,
    TEN_MINUTES,
    WAITING_JOBS,
    Inspector,
    Row,
    Series,
)
from ..model.dead_job import utc

#: Series of a document, in their order -> name, and what it counts.
SERIES = {
    "succeeded": ("Finished", "runs that returned"),
    "failed": ("Failed", "runs that raised an error"),
    "retried": ("Retried", "runs that ended with a retry"),
    "rejected": ("Rejected", "runs that ignored or rejected their job"),
    "recovered": ("Recovered", "jobs of dead workers or pool processes that were requeued"),
    "killed": ("Dead-lettered", "jobs that were moved to the dead set"),
    WAITING_JOBS: ("Waiting", "the most that a reap pass found"),
}

HOURS_MOST = 24

#: Rows of queue lists that are read, those that grew last; and queues that the document names.
ROWS_READ, CHART_QUEUES_MOST = 1000, 50

#: Deaths that are read for the times of recoveries, and those that the document names.
DEATHS_READ, DEATHS_NAMED = 500, 10

HOUR_MS = 3_600_000

Counts = list[int | None]


def charts_of(inspector: Inspector, hours: int = 1, queue: str | None = None) -> dict[str, Any]:
    """Read the series of the latest hours, and return the document. Of one hour they have a count
    for each minute, of more hours for each ten minutes. The last count is of the slot that is under
    way.

    Arguments:
        hours: from 1 to ``HOURS_MOST``.
        queue: the series of this queue alone; None: those of all queues together, and a row for
            each of the busiest queues.
    """
    now, minutes = inspector.database.server_time(), inspector.minutes
    step, first, last = _window(now, hours)
    by_queue = _rows_by_queue(inspector, queue)
    totals = [Row(event) for event in SERIES]
    found = minutes.series(step, [*totals, *(row for rows in by_queue.values() for row in rows)])
    # A pass that found no waiting job on a list wrote nothing for it.
    passes = found[Row(WAITING_JOBS)].window(first, last)
    names = [queue] if queue is not None else [*by_queue]
    queues = [
        {"queue": name, **_summed(found, by_queue[name], first, last, passes)} for name in names
    ]
    queues.sort(key=lambda row: (-sum(row["sums"][event] for event in COUNTED), row["queue"]))
    whole = queues.pop() if queue is not None else _summed(found, totals, first, last, passes)
    return {
        "server_time": utc(now / 1000),
        "hours": hours,
        **_times(step, first, last),
        "queue": queue,
        "series": whole["series"],
        "sums": whole["sums"],
        "queues": queues[:CHART_QUEUES_MOST],
        "queues_left_out": len(queues[CHART_QUEUES_MOST:]),
        # Rows that were not read, of queues on which less has happened lately.
        "rows_left_out": 0 if queue is not None else max(0, minutes.row_count() - ROWS_READ),
        **_recoveries(inspector, now, hours),
    }


def last_hour_of(inspector: Inspector) -> dict[str, Any]:
    """Return the series of all queues together by minutes of the last hour."""
    step, first, last = _window(inspector.database.server_time(), 1)
    totals = [Row(event) for event in SERIES]
    found = inspector.minutes.series(step, totals)
    passes = found[Row(WAITING_JOBS)].window(first, last)
    return {**_times(step, first, last), **_summed(found, totals, first, last, passes)}


def _window(now: int, hours: int) -> tuple[int, int, int]:
    """Return the minutes of a slot, and the first and the last slot of so many hours until ``now``
    (server ms)."""
    step = ONE_MINUTE if hours == 1 else TEN_MINUTES
    last = now // (step * 60_000)
    return step, last - min(SLOTS[step], hours * 60 // step), last


def _times(step: int, first: int, last: int) -> dict[str, Any]:
    times = [utc(slot * step * 60) for slot in range(first, last + 1)]
    return {"minutes": step, "times": times}


def time_of(document: Mapping[str, Any], at: int) -> str:
    """Return the begin of a slot as it is shown; with its date, if the slots are of several
    hours."""
    time = document["times"][at]
    return time[11:16] if document["minutes"] == ONE_MINUTE else f"{time[5:10]} {time[11:16]}"


def _rows_by_queue(inspector: Inspector, queue: str | None) -> Mapping[str, list[Row]]:
    """Return the rows of each queue that has some; of ``queue`` alone, if it is not None."""
    rows, queue_of = inspector.minutes.rows(ROWS_READ), inspector.database.queue_of
    by_queue = defaultdict[str, list[Row]](list)
    if queue is None:
        for row in rows:
            by_queue[queue_of(row.queue_list)].append(row)
    else:
        lists = {queue, *inspector.lists, *(row.queue_list for row in rows)}
        of_queue = [name for name in lists if queue_of(name) == queue]
        by_queue[queue] = [Row(event, name) for event in SERIES for name in of_queue]
    return by_queue


def _summed(
    found: Mapping[Row, Series], rows: Iterable[Row], first: int, last: int, passes: Counts
) -> dict[str, Any]:
    """Return the series of some rows, added up for each event, and their sums. A count is None
    where nothing is known: no pass has looked how many jobs wait. ``sums``: of waiting jobs the
    greatest count."""
    by_event: dict[str, list[Counts]] = {event: [] for event in SERIES}
    for row in rows:
        if row.event in by_event:
            by_event[row.event].append(found[row].window(first, last))
    series: dict[str, Counts] = {}
    for event, windows in by_event.items():
        counts = [sum(n or 0 for n in slot) for slot in zip(*windows, strict=True)]
        series[event] = [*counts] or [0] * (last - first + 1)
    waiting = zip(series[WAITING_JOBS], passes, strict=True)
    series[WAITING_JOBS] = [None if known is None else count for count, known in waiting]
    sums = {event: sum(n or 0 for n in series[event]) for event in COUNTED}
    sums[WAITING_JOBS] = max((n or 0 for n in series[WAITING_JOBS]), default=0)
    return {"series": series, "sums": sums}


def _recoveries(inspector: Inspector, now: int, hours: int) -> dict[str, Any]:
    """Return the latest recoveries, and for each hour that has some how long they took: the time
    from the last heartbeat of a dead worker until its jobs were recovered."""
    rows = [
        {
            "at": death["at"],
            "node": death["node"] or death["owner"],
            "host": death["host"],
            "reason": death["reason"],
            "recovered": death["recovered"],
            "killed": death["killed"],
            "seconds": max(0, death["at"] - death["last_heartbeat"]) / 1000,
        }
        for death in inspector.stats.deaths(DEATHS_READ)
        # A worker that held no job has recovered none.
        if death["recovered"] + death["killed"] and death["at"] >= now - hours * HOUR_MS
    ]
    by_hour = defaultdict[int, list[float]](list)
    for row in rows:
        by_hour[row["at"] // HOUR_MS].append(row["seconds"])
    return {
        "recoveries": [{**row, "at": utc(row["at"] / 1000)} for row in rows[:DEATHS_NAMED]],
        "recovery_hours": [
            {
                "from": utc(hour * HOUR_MS / 1000),
                "deaths": len(seconds),
                "median": median(seconds),
                "longest": max(seconds),
            }
            for hour, seconds in sorted(by_hour.items(), reverse=True)
        ],
    }


def greatest(counts: Sequence[int | None]) -> int:
    """Return the greatest count of a series; 0 if it has none."""
    return max((count or 0 for count in counts), default=0)
