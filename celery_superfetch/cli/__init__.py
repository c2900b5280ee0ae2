"""``celery -A app superfetch ...``: what operators do, a file for each group of commands.

The console adds its own. No other room imports it: a worker or a producer never loads a command.
"""

from __future__ import annotations

import click

# They add their commands to the group.
from . import dead, queue, status, stock  # noqa: F401
from .progress import Countdown
from .session import SECONDS, Session, command, interruptible, know_tasks, quantity, superfetch

__all__ = ["superfetch"]


@command(superfetch, "reap")
@click.option("--full", is_flag=True, help="First register workers that nobody knows (SCAN).")
@quantity(
    "--wait", SECONDS, 0.0, "SECONDS", "Watch silent workers of other hosts up to this long first."
)
@click.option("--dry-run", is_flag=True, help="Only judge and count; change nothing.")
def reap(session: Session, full: bool, wait: float, dry_run: bool) -> None:
    """Make one pass now: what dead workers held goes back to its queues."""
    from ..app.reaper import record_pass
    from ..model.words import number
    from ..reaper.evidence import Onlooker

    know_tasks(session.app)
    reaper = session.reaper
    adopted = reaper.register_unknown() if full and not dry_run else 0
    if wait:
        onlooker, countdown = Onlooker(reaper.registry), Countdown(session.as_json)

        def show(owners: int, seconds: float) -> None:
            countdown(f"Watching {number(owners, 'silent worker')} of other hosts", seconds)

        with interruptible(lambda: "no job was moved."):
            onlooker.stay(wait, show)
        countdown.end()
        reaper.silence = onlooker.silence
    report = reaper.reap(dry_run=dry_run)
    if not dry_run:
        record_pass(reaper, report)
    reasons = {owner: reason.value for owner, reason in report.dead.items()}
    sets = {"probation": sorted(report.probation), "lists": sorted(report.lists)}
    document = {**vars(report), **sets, "adopted": adopted, "dead": reasons}
    session.say(document, lambda: session.tables.line(str(report)))
    if report.errors:
        raise click.exceptions.Exit(1)
