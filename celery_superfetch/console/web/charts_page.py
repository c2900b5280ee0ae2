"""The page's view of the charts: reads the address, and gives the template its values.

``page`` calls it in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..charts import HOURS_MOST, SERIES, time_of
from .cache import PageCache
from .drawing import bars_of, drawings_of

#: Hours -> name of the view.
VIEWS = {1: "last hour", HOURS_MOST: "last day"}

QUEUES_SHOWN = 40

#: Characters of a queue's name in an address that are read.
QUEUE_MAX_CHARS = 500


def words_of_charts(cache: PageCache, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the template ``charts.html`` for the parameters of an address."""
    hours = HOURS_MOST if asked.get("hours") == str(HOURS_MOST) else 1
    queue = asked.get("queue", "")[:QUEUE_MAX_CHARS] or None
    document = cache.charts(hours, queue)
    rows = [
        {**row, "bars": bars_of(row["series"]["succeeded"])}
        for row in document["queues"][:QUEUES_SHOWN]
    ]
    return {
        "found": document,
        "views": VIEWS,
        "hours": hours,
        "names": {event: name for event, (name, _) in SERIES.items()},
        "drawings": drawings_of(document),
        "rows": rows,
        "left_out": document["queues_left_out"] + len(document["queues"]) - len(rows),
        # The newest first; the last column of a chart is the first row.
        "table": [
            (time_of(document, at), [document["series"][event][at] for event in SERIES])
            for at in reversed(range(len(document["times"])))
        ],
    }
