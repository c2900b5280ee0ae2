"""``celery superfetch workers``: lists the workers, shows one, and stops one.

It reads; ``stop`` sends one control command of Celery's to one worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from ...cli.auditing import recorded
from ...cli.session import Session, command, in_session
from ...cli.tables import STYLES, YELLOW, Tables
from ...model.arguments import task_title
from ...model.humanize import number, sentence, span
from ..job_texts import STATE_TITLES
from ..overview import is_full, running_of, running_text
from ..workers import STOP_EFFECT, memory_of, one_worker, owner_named, pool_of, stop, workers_of

WORKERS_TITLES = (
    "Worker",
    "State",
    "Host",
    "Pid",
    "Pool",
    "Memory",
    "Up",
    "Running",
    "Reserved",
    "Queues",
)
WORKERS_SPARE = ("Memory", "Up", "Pid", "Pool", "Host")
WORKERS_WIDE_TITLES = (
    *WORKERS_TITLES,
    "Heartbeat",
    "Longest run",
    "App",
    "Version",
    "Worker id",
    "Reason",
)

QUEUES_NAMED = 5  # queues that a row of a terminal names


@click.group(name="workers", invoke_without_command=True)
@click.option("--wide", is_flag=True, help="Show all columns, each worker on one line.")
@in_session
def workers(session: Session, wide: bool) -> None:
    """List the workers, those that need attention first."""
    document = workers_of(session.inspector)

    def text() -> None:
        tables, rows = session.tables, document["workers"]
        if wide:
            tables.widen()
        shown = [_shown(row, tables.wide) for row in rows]
        tables.table(WORKERS_WIDE_TITLES if tables.wide else WORKERS_TITLES, shown, WORKERS_SPARE)
        if not tables.wide:
            for row in rows:
                if row["mood"] != "ok":
                    tables.line(f"{row['node'] or row['owner']}: {row['reason']}")
        tables.line(f"{number(len(rows), 'worker')}." if rows else "No worker is registered.")

    session.say(document, text)


def _shown(row: Mapping[str, Any], is_wide: bool) -> dict[str, object]:
    queues = row["queues"] if is_wide else row["queues"][:QUEUES_NAMED]
    hidden = len(row["queues"]) - len(queues)
    longest = row["longest_run"]
    return {
        **row,
        "worker": row["node"] or row["owner"],
        "state": (row["word"], STYLES[row["mood"]]),
        "running": (running_of(row), YELLOW) if is_full(row) else running_of(row),
        "pool": pool_of(row),
        "memory": memory_of(row),
        "up": span(row["age"]),
        "queues": ", ".join(queues) + (f" and {hidden} more" if hidden else ""),
        "heartbeat": f"{span(row['heartbeat_age'])} ago",
        "longest_run": None if longest is None else span(longest),
        "worker_id": row["owner"],
    }


@command(workers, "show")
@click.argument("name", metavar="WORKER")
def show_worker(session: Session, name: str) -> None:
    """Show one worker and its jobs, or how a dead one ended.

    Of a dead one it also shows what became of its jobs.

    WORKER is its node name, such as celery@web-1, or its worker id. Exit code 1: neither a worker
    nor a death of the last seven days has the name.
    """
    document = one_worker(session.inspector, owner_named(session.inspector, name))
    session.say(document, lambda: _print_worker(session.tables, document))
    if not document["worker"] and not document["death"]:
        raise click.exceptions.Exit(1)


def _print_worker(tables: Tables, document: Mapping[str, Any]) -> None:
    worker, death = document["worker"], document["death"]
    if worker:
        name, word = worker["node"] or worker["owner"], worker["word"]
        tables.line(f"{name}: {word}, {running_text(worker)}, {worker['reserved']} reserved")
        tables.line(f"Reason: {worker['reason']}. Worker id: {worker['owner']}")
        _print_jobs(tables, document["jobs"])
        if document["more"]:
            tables.line(f"and {document['more']} more")
    elif death:
        tables.line(f"{death['node'] or death['owner']}: dead, and not registered any more.")
        tables.line(sentence(death["text"]))
        tables.line(f"Worker id: {death['owner']}")
        _print_jobs(tables, death["jobs"])
    else:
        tables.line(
            "This worker is not registered any more, and no death of it is recorded within the "
            "last seven days. See `jobs --state struck` for jobs with strikes."
        )


def _print_jobs(tables: Tables, jobs: Iterable[Mapping[str, Any]]) -> None:
    rows = [
        {**job, "task": task_title(job["task"]), "state": STATE_TITLES[job["state"]]}
        for job in jobs
    ]
    if rows:
        tables.line()
        tables.table(("State", "Task", "Id", "Queue"), rows)


@command(workers, "stop")
@click.argument("node", metavar="NODE")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def stop_worker(session: Session, node: str, yes: bool) -> None:
    """Tell worker NODE (its name, such as celery@web-1) to stop.

    It claims no more jobs, requeues those that have not begun, finishes the running ones, and ends.
    A supervisor may start it again.
    """
    rows = workers_of(session.inspector)["workers"]
    if not yes and any(row["node"] == node for row in rows):
        click.confirm(f"Stop worker {node}? {STOP_EFFECT}", abort=True, err=True)
    with recorded(session, "workers stop", node) as entry:
        row = stop(session.app, rows, node)
        entry.end(f"told to stop; its running jobs: {row['running']}")
    document = {"node": node, "owner": row["owner"], "running": row["running"]}
    jobs = number(row["running"], "running job")
    text = f"Told worker {node} to stop. It finishes {jobs} and ends."
    session.say(document, lambda: session.tables.line(text))
