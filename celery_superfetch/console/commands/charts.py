"""``celery superfetch charts``: prints how runs ended and jobs waited lately; it only reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from celery.bin.base import CeleryCommand

from ...cli.session import Session, in_session
from ...cli.tables import BOLD, RED, YELLOW, Style, Tables
from ...inspector import WAITING_JOBS
from ...model.humanize import ago, number, span
from ..charts import HOURS_MOST, SERIES, charts_of, greatest, time_of

#: Columns of a line of bars.
BARS_MOST = 61

#: Bars for zero, and for counts from the smallest to the greatest one; for a terminal that can
#: print no blocks, plain ones. ``UNKNOWN`` stands where no pass has looked.
BLOCKS, PLAIN = "_▁▂▃▄▅▆▇█", "_.:-=+*%#"
UNKNOWN = "?"

SERIES_STYLES: Mapping[str, Style] = {"failed": YELLOW, "recovered": YELLOW, "killed": RED}


@click.command(name="charts", cls=CeleryCommand)
@click.option(
    "--hours",
    type=click.IntRange(1, HOURS_MOST),
    default=1,
    show_default=True,
    help="Show this many hours: one by minutes, several by ten minutes.",
)
@click.option("--queue", help="Only the series of this queue.")
@in_session
def charts(session: Session, hours: int, queue: str | None) -> None:
    """Show charts of runs, recoveries and waiting jobs.

    It shows over time how many jobs finished, failed, were recovered, were moved to the dead set
    and waited, and how long recoveries took. Read-only.
    """
    document = charts_of(session.inspector, hours, queue)
    session.say(document, lambda: print_charts(session.tables, document))


def print_charts(tables: Tables, document: Mapping[str, Any]) -> None:
    """Print a document of ``charts_of``."""
    every = "minute" if document["minutes"] == 1 else f"{document['minutes']} minutes"
    begin, end = (time_of(document, at) for at in (0, -1))
    of = f" of queue {document['queue']}" if document["queue"] is not None else ""
    tables.line(f"By {every}{of}, from {begin} to {end} UTC", BOLD)
    sums = document["sums"]
    rows = [
        {
            "series": (name, SERIES_STYLES.get(event, {}) if sums[event] else {}),
            "in_all": None if event == WAITING_JOBS else sums[event],
            "most": greatest(document["series"][event]),
            "chart": bars(document["series"][event]),
        }
        for event, (name, _) in SERIES.items()
    ]
    tables.table(("Series", "In all", "Most", "Chart"), rows)
    if document["queues"]:
        tables.line()
        tables.table(
            ("Queue", *(name for name, _ in SERIES.values()), "Chart"),
            map(_queue_row, document["queues"]),
            ("Chart", "Rejected", "Retried", "Waiting"),
        )
    if left_out := document["queues_left_out"]:
        tables.line(f"and {number(left_out, 'queue')} more: --queue names one")
    if document["recoveries"]:
        tables.line()
        now = document["server_time"]
        deaths = [
            {
                "dead_worker": row["node"],
                "when": ago(row["at"], now),
                "recovery": span(row["seconds"]),
                "recovered": row["recovered"],
                "dead-lettered": row["killed"],
            }
            for row in document["recoveries"]
        ]
        titles = ("Dead worker", "When", "Recovery", "Recovered", "Dead-lettered")
        tables.table(titles, deaths)


def _queue_row(row: Mapping[str, Any]) -> dict[str, Any]:
    sums = {name.lower(): row["sums"][event] for event, (name, _) in SERIES.items()}
    return {"queue": row["queue"], **sums, "chart": bars(row["series"]["succeeded"])}


def bars(counts: Sequence[int | None]) -> str:
    """Return a line of bars, a character for each count, or for several if there are many: then it
    shows the greatest of them."""
    per_bar = -(-len(counts) // BARS_MOST)
    groups = [counts[at : at + per_bar] for at in range(0, len(counts), per_bar)]
    heights, most = _heights(), greatest(counts)
    return "".join(_bar(group, most, heights) for group in groups)


def _bar(group: Sequence[int | None], most: int, heights: str) -> str:
    if all(count is None for count in group):
        return UNKNOWN
    top = len(heights) - 1
    return heights[-(-greatest(group) * top // most) if most else 0]


def _heights() -> str:
    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return PLAIN
    return BLOCKS
