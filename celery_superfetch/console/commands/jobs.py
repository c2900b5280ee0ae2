"""``celery superfetch jobs ...``: what is in flight, is parked, and waits on probation."""

from __future__ import annotations

from typing import Any

import click

from ...cli.session import Session, complain, in_session, quantity
from ..jobs import Look, Which
from .jobs_table import print_jobs

#: Jobs to look through that take long enough to say so: at 10,000 it is half a second.
MANY = 1000


@click.command(name="jobs")
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
    """List jobs in flight, parked ones (they wait for their time), and those on probation."""
    look = Look(session.inspector, Which(**which))
    if not look.which.countable and (size := look.size()) > MANY:
        complain(f"Looking through {size:,} jobs ...")
    document = look.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(document, lambda: print_jobs(session.tables, document, picked, wide))
