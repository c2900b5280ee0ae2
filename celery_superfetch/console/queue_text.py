"""The text of ``celery superfetch queue show``: a queue's numbers, workers, priorities and jobs.

``health.Judged`` calls it, for ``cli/queue.py``. It only prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..cli.tables import BOLD, GREEN, RED, YELLOW, Style, Tables
from ..model.arguments import LISTED_MAX_CHARS, cut, task_title
from ..model.humanize import ahead, number, span
from .overview import is_full, running_of

WORKER_TITLES = ("Worker", "State", "Running", "Reserved", "Reason")
LIST_TITLES = ("Priority", "Waiting", "Probation", "Scheduled", "Oldest")
JOB_TITLES = ("Task", "Id", "Priority", "Retries", "Due", "Waits", "Args")
JOB_SPARE = ("Args", "Retries", "Due", "Priority")


def print_queue(tables: Tables, view: Mapping[str, Any]) -> None:
    """Print the document of a queue (``queue_view``)."""
    for text, style in _headings(view):
        tables.line(text, style)
    tables.line()
    if view["workers"]:
        tables.table(WORKER_TITLES, map(_worker, view["workers"]), ("Reason",))
        if left_out := view["workers_left_out"]:
            tables.line(f"and {left_out} more")
    else:
        tables.line("No worker has this queue.")
    if len(view["lists"]) > 1:
        tables.line()
        tables.table(LIST_TITLES, map(_list, view["lists"]))
    if view["jobs"]:
        tables.line()
        tables.line("Next jobs:", BOLD)
        rows = [_job(tables, job, view["server_time"]) for job in view["jobs"]]
        tables.table(JOB_TITLES, rows, JOB_SPARE)
        if left_out := view["jobs_left_out"]:
            tables.line(f"and {left_out} more")


def _headings(view: Mapping[str, Any]) -> Iterator[tuple[str, Style]]:
    oldest = f", the oldest for {span(view['oldest'])}" if view["oldest"] else ""
    text = f"Queue {view['queue']}: {number(view['waiting'], 'job')} waiting{oldest}"
    serving = number(view["consumers"], "worker")
    style = RED if view["error"] or view["unserved"] else GREEN
    yield f"{text}, {serving} running that consume{'s' * (view['consumers'] == 1)} it", style
    if view["error"]:
        yield f"Its key is no list: {view['error']}", RED
    if pause := view["paused"]:
        since = "" if pause["age"] is None else f" for {span(pause['age'])}"
        by = f" by {pause['by']}" if pause["by"] else ""
        yield f"Paused{since}{by}: no worker claims its jobs until `queue resume`", YELLOW
    if view["probation"]:
        yield f"On probation: {number(view['probation'], 'job')}", YELLOW
    if view["parked"]:
        due = ahead(view["next_due"], view["server_time"]) if view["next_due"] else "unknown"
        yield f"Scheduled: {number(view['parked'], 'job')}, the next due {due}", {}


def _worker(row: Mapping[str, Any]) -> dict[str, object]:
    style = {} if row["serves"] else RED if row["state"] in ("dead", "hung") else YELLOW
    running = (running_of(row), YELLOW) if is_full(row) else running_of(row)
    shown = {"worker": row["node"] or row["owner"], "state": (row["state"], style)}
    return {**row, **shown, "running": running}


def _list(row: Mapping[str, Any]) -> dict[str, object]:
    oldest = span(row["oldest"]) if row["oldest"] else None
    return {**row, "waiting": row["length"], "scheduled": row["parked"], "oldest": oldest}


def _job(tables: Tables, job: Mapping[str, Any], now: str) -> dict[str, object]:
    return {
        **job,
        "task": task_title(job["task"]),
        "id": tables.short(job["id"]),
        "due": job["due"] and ahead(job["due"], now),
        "waits": span(job["age"]) if job["age"] else None,
        "args": cut(f"{job['args']} {job['kwargs']}".strip(), LISTED_MAX_CHARS),
    }
