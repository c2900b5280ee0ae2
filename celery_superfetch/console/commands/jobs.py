"""``celery superfetch jobs ...``: what is in flight, is parked, and waits on probation."""

from __future__ import annotations

from typing import Any

import click

from ...cli.session import Session, command, complain, in_session, quantity
from ..jobs import Look, Which
from ..killing import kill, named, title_of
from .jobs_table import print_jobs

#: Jobs to look through that take long enough to say so: at 10,000 it is half a second.
MANY = 1000


@click.group(name="jobs", invoke_without_command=True)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", "parked", "probation", "struck")),
    help="Only jobs in this state; struck: jobs with strikes.",
)
@click.option("--queue", help="Only jobs from this queue; * stands for anything.")
@click.option("--task", help="Only jobs of this task; * stands for anything.")
@click.option("--node", help="Only jobs of this worker; * stands for anything.")
@quantity("--limit", click.IntRange(1), 100, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
@in_session
def jobs(session: Session, limit: int, wide: bool, **which: Any) -> None:
    """List jobs in flight, parked ones (they wait for their time), and those on probation.

    Without a command it only reads. ID is a job's Celery task id, its digest, or its handle (in
    --json), which one job alone has; or the start of one of them.
    """
    look = Look(session.inspector, Which(**which))
    if not look.which.countable and (size := look.size()) > MANY:
        complain(f"Looking through {size:,} jobs ...")
    document = look.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(document, lambda: print_jobs(session.tables, document, picked, wide))


@command(jobs, "kill")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def jobs_kill(session: Session, ids: tuple[str, ...], yes: bool) -> None:
    """Move jobs in flight to the dead set, and tell their callers. What runs is ended."""
    rows, errors = named(session.inspector, ids)
    if rows and not yes:
        number = f"{len(rows)} jobs" if len(rows) > 1 else title_of(rows[0])
        run = ", and end what runs" if any(job["state"] == "running" for job in rows) else ""
        click.confirm(f"Move {number} to the dead set{run}?", abort=True, err=True)
    done, refused = kill(session.app, session.inspector, rows)
    lines = [f"Killed, in the dead set as {job['dead_id']}: {title_of(job)}" for job in done]
    session.end({"killed": done}, [*errors, *refused], lines)
