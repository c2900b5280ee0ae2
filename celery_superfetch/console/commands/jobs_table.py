"""The output of ``celery superfetch jobs``: a table for each worker; on a pipe, one of all.

The command (``jobs.py``) calls ``print_jobs``. It only prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...cli.tables import BOLD, YELLOW, Tables
from ...inspector import PARKED, STATES
from ...model.arguments import LISTED_MAX_CHARS, cut, task_title
from ...model.humanize import ago, ahead, number, span
from ..jobs import SCHEDULED
from ..overview import by_need, running_text

TITLES = ("State", "Task", "Id", "Queue", "Strikes", "Retries", "Run time", "Claimed", "Due")
WIDE_TITLES = ("Worker", *TITLES[:-2], "Started", *TITLES[-2:], "Args")
SPARE = ("Retries", "Queue", "Strikes")
SORTED_SPARE = ("Retries", "Strikes", "Queue", "Claimed")


def print_jobs(
    tables: Tables, document: dict[str, Any], picked: bool, sort: str | None, wide: bool
) -> None:
    """Print the jobs of a ``JobsSnapshot``.

    Arguments:
        picked: they were chosen by conditions.
        sort: their order; None: a table for each worker.
    """
    if wide:
        tables.widen()
    jobs = [{**job, **_shown(tables, document, job)} for job in document["jobs"]]
    if tables.wide:
        tables.table(WIDE_TITLES, jobs)
    elif sort:
        tables.table(("Worker", *_titles(jobs)), jobs, SORTED_SPARE)
    else:
        owners = {owner["owner"]: owner for owner in by_need(document["owners"])}
        for at, (owner, some) in enumerate(groupby(jobs, key=lambda job: job["owner"])):
            if at:
                tables.line()
            tables.line(_heading(owners[owner]) if owner else "Not claimed", BOLD)
            rows = sorted(some, key=_order)
            tables.table(_titles(rows), rows, SPARE)
    tables.line(ending(len(jobs), document, picked))


def _titles(rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    return TITLES if any(row["due"] for row in rows) else TITLES[:-1]


def _order(job: Mapping[str, Any]) -> int:
    return 0 if job["long_run"] else STATES.index(job["state"])


def _heading(owner: dict[str, Any]) -> str:
    return (
        f"{owner['node'] or owner['owner']}, {owner['word']}: {running_text(owner)}, "
        f"{owner['reserved']} reserved"
    )


def _shown(tables: Tables, document: dict[str, Any], job: dict[str, Any]) -> dict[str, object]:
    now = document["server_time"]
    claimed, started, due = (job[name] for name in ("claimed", "started", "due"))
    if not tables.wide:
        claimed, due = claimed and ago(claimed, now), due and ahead(due, now)
    state = SCHEDULED if job["state"] == PARKED else job["state"]
    return {
        "state": (f"long-running, {span(job['long_run'])}", YELLOW) if job["long_run"] else state,
        "worker": job["node"],
        "id": tables.short(job["id"]),
        "task": task_title(job["task"]),
        "started": started,
        "run_time": None if job["run_time"] is None else span(job["run_time"]),
        "claimed": claimed,
        "due": due,
        "args": cut(f"{job['args']} {job['kwargs']}".strip(), LISTED_MAX_CHARS),
        "strikes": (job["strikes"], YELLOW) if job["strikes"] else 0,
    }


def ending(shown: int, document: dict[str, Any], picked: bool) -> str:
    if not document["complete"]:
        found = number(shown + document["more"], "job")
        return f"{found} among the {document['read']} of {document['size']} jobs that were read."
    if not shown:
        return "No job matches." if picked else "No job is in flight, scheduled or on probation."
    if surplus := document["more"]:
        return f"{number(shown, 'job')}, and {surplus} more: --limit {shown + surplus}"
    return f"{number(shown, 'job')}."
