"""``celery -A app superfetch ...``: what operators do, a file for each group of commands.

Nothing imports it: no worker and no producer loads a command.
"""

from __future__ import annotations

import click

# They add their commands to the group.
from . import dead, jobs, serving, status, stock  # noqa: F401
from .session import Session, command, know_tasks, superfetch

__all__ = ["superfetch"]


@command(superfetch, "reap")
@click.option("--full", is_flag=True, help="Also look for private lists that nobody registered.")
@click.option("--dry-run", is_flag=True, help="Only judge and count; change nothing.")
def reap(session: Session, full: bool, dry_run: bool) -> None:
    """Make one pass now: what dead workers held goes back to its queues."""
    from ..app.passes import note

    know_tasks(session.app)
    report = session.reaper.reap(full=full, dry_run=dry_run)
    if not dry_run:
        note(session.reaper, report)
    reasons = {owner: reason.value for owner, reason in report.dead.items()}
    sets = {"probation": sorted(report.probation), "lists": sorted(report.lists)}
    document = {**vars(report), **sets, "dead": reasons}
    session.say(document, lambda: session.tables.line(str(report)))
    if report.errors:
        raise click.exceptions.Exit(1)
