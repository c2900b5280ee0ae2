"""``celery -A app superfetch ...``: the commands for operators, a file for each group.

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
@click.option("--full", is_flag=True, help="Also find and register unknown workers (SCAN).")
@quantity(
    "--wait",
    SECONDS,
    0.0,
    "SECONDS",
    "First watch silent workers on other hosts, for at most this long. Without this option none of "
    "them is declared dead.",
)
@click.option("--dry-run", is_flag=True, help="Only report; change nothing.")
def reap(session: Session, full: bool, wait: float, dry_run: bool) -> None:
    """Make one reap pass now: recover the jobs of dead workers."""
    from ..app.reaper import record_pass
    from ..model.humanize import number
    from ..reaper.evidence import Onlooker
    from .auditing import recorded

    know_tasks(session.app)
    reaper = session.reaper
    registered = reaper.register_unknown() if full and not dry_run else 0
    if wait:
        onlooker, countdown = Onlooker(reaper.registry), Countdown(session.as_json)

        def show(owners: int, seconds: float) -> None:
            countdown(f"Watching {number(owners, 'silent worker')} on other hosts", seconds)

        with interruptible(lambda: "no job was moved."):
            onlooker.watch(wait, show)
        countdown.end()
        reaper.staleness = onlooker.staleness
    report = reaper.reap(dry_run=dry_run)
    if not dry_run:
        record_pass(reaper, report)
        if report.did_something or registered:  # a program may call it each minute
            with recorded(session, "reap", "full" if full else "all workers") as entry:
                entry.end(str(report), report.recovered + report.killed, report.errors)
    reasons = {owner: reason.value for owner, reason in report.dead.items()}
    sets = {"probation": sorted(report.probation), "lists": sorted(report.lists)}
    document = {**vars(report), **sets, "registered": registered, "dead": reasons}
    session.say(document, lambda: session.tables.line(str(report)))
    if report.errors:
        raise click.exceptions.Exit(1)
