"""``celery superfetch jobs``: what is in flight, and what waits on probation."""

from __future__ import annotations

from typing import Any

import click

from .session import Session, in_session, superfetch


@superfetch.group(name="jobs", invoke_without_command=True)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", "eta", "probation", "struck")),
    help="Only these; struck: those with strikes.",
)
@click.option("--queue", help="Only those from this queue; * stands for anything.")
@click.option("--task", help="Only this task; * stands for anything.")
@click.option("--node", help="Only those of this worker; * stands for anything.")
@click.option(
    "--limit", type=click.IntRange(1), default=100, show_default=True, help="Show so many."
)
@click.option("--wide", is_flag=True, help="All columns, each job on one line.")
@in_session
def jobs(session: Session, limit: int, wide: bool, **which: Any) -> None:
    """Jobs in flight by their workers, and those on probation. Only reads."""
    from ..operate.jobs import Look, Which
    from .jobs_tables import print_jobs

    look = Look(session.reaper, Which(**which), session.dead_set.separator)
    found = look.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(found, lambda: print_jobs(session.tables, found, picked, wide))
