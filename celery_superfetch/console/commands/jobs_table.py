"""How ``celery superfetch jobs`` looks: a table for each worker; on a pipe one of all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ...cli.tables import BOLD, YELLOW, Tables
from ...inspector import STATES
from ...model.arguments import task_title
from ...model.words import ago, ahead, number, span
from ..overview import by_need

TITLES = ("State", "Task", "Id", "Queue", "Strikes", "Started", "Claimed", "Due")
SPARE = ("Queue", "Strikes")


def print_jobs(tables: Tables, document: dict[str, Any], picked: bool, wide: bool) -> None:
    """Print what a look has found; ``picked``: by conditions."""
    if wide:
        tables.widen()
    jobs = [{**job, **_shown(tables, document, job)} for job in document["jobs"]]
    if tables.wide:
        tables.table(("Node", *TITLES), jobs)
    else:
        owners = {owner["owner"]: owner for owner in by_need(document["owners"])}
        for at, (owner, some) in enumerate(groupby(jobs, key=lambda job: job["owner"])):
            if at:
                tables.line()
            tables.line(_heading(owners[owner]) if owner else "Nobody's yet", BOLD)
            rows = sorted(some, key=_order)
            due = any(row["due"] for row in rows)
            tables.table(TITLES if due else TITLES[:-1], rows, SPARE)
    tables.line(ending(len(jobs), document, picked))


def _order(job: Mapping[str, Any]) -> int:
    return 0 if job["long_run"] else STATES.index(job["state"])


def _heading(owner: dict[str, Any]) -> str:
    return (
        f"{owner['node'] or owner['owner']}, {owner['word']}: {owner['running']} running, "
        f"{owner['reserved']} reserved"
    )


def _shown(tables: Tables, document: dict[str, Any], job: dict[str, Any]) -> dict[str, object]:
    now = document["server_time"]
    claimed, started, due = (job[name] for name in ("claimed", "started", "due"))
    if not tables.wide:
        claimed, due = claimed and ago(claimed, now), due and ahead(due, now)
        started = started and ago(started, now)
    return {
        "state": (f"runs {span(job['long_run'])}", YELLOW) if job["long_run"] else job["state"],
        "id": tables.short(job["id"]),
        "task": task_title(job["task"]),
        "started": started,
        "claimed": claimed,
        "due": due,
        "strikes": (job["strikes"], YELLOW) if job["strikes"] else 0,
    }


def ending(shown: int, document: dict[str, Any], picked: bool) -> str:
    if not document["complete"]:
        found = number(shown + document["more"], "job")
        return f"{found} among {document['looked_at']} of {document['size']} that were looked at."
    if not shown:
        return (
            "No job meets the conditions."
            if picked
            else "No job is in flight, parked or on probation."
        )
    if surplus := document["more"]:
        return f"{number(shown, 'job')}, and {surplus} more: --limit {shown + surplus}"
    return f"{number(shown, 'job')}."
