"""The output of ``celery superfetch jobs show`` (a job with its history, workflow and log hints)
and of ``jobs find``.

The commands (``jobs.py``) call it. It only prints.
"""

from __future__ import annotations

from typing import Any

from ...cli.tables import BOLD, Tables
from ...model.arguments import task_title
from ...model.humanize import number, span
from ..job_texts import (
    NOT_RECORDED,
    STATE_TITLES,
    ended_of,
    examined_of,
    found_of,
    logs_of,
    summary_of,
    workflow_of,
)

EVENT_TITLES = ("When", "Event", "Host", "Reason")


def print_job(tables: Tables, document: dict[str, Any]) -> None:
    """Print the document of ``one_job``."""
    for job in document["jobs"]:
        run_time = "" if job["run_time"] is None else f", for {span(job['run_time'])}"
        tables.line(f"{task_title(job['task'])}: {job['state']}{run_time}", BOLD)
        for title, value in summary_of(job).items():
            _field(tables, title, value)
        tables.line()
        tables.line("History, the oldest first:", BOLD)
        tables.table(
            EVENT_TITLES,
            [{**event, "when": event["at"] or NOT_RECORDED} for event in job["events"]],
        )
        tables.line()
        tables.line("Workflow:", BOLD)
        for title, value in workflow_of(job).items():
            _field(tables, title, value)
        tables.line()
        if job["logs"]:
            tables.line("In the logs of its workers (LOG is the file or the stream):", BOLD)
            tables.line(job["grep"])
            for line in logs_of(job):
                tables.line(line)
            tables.line()
    count = len(document["jobs"])
    found = f"{number(count, 'job')} found" if count else "No job with this id was found"
    tables.line(f"{found}. Searched: {examined_of(document)}.")
    if not count:
        tables.line(ended_of(document))


FOUND_TITLES = ("State", "Task", "Id", "Queue", "Worker", "Strikes")


def print_found(tables: Tables, document: dict[str, Any]) -> None:
    """Print the document of ``find_jobs``: a row for each job, with its state."""
    rows = [
        {
            **job,
            "task": task_title(job["task"]),
            "state": STATE_TITLES[job["state"]],
            "worker": job["node"] or job["owner"],
        }
        for job in document["jobs"]
    ]
    if rows:
        tables.table(FOUND_TITLES, rows, ("Strikes", "Worker"))
    tables.line(found_of(document))


def _field(tables: Tables, title: str, value: object) -> None:
    tables.line(f"{title + ':':<18}{value}")
