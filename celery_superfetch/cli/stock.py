"""``celery superfetch migrate`` and ``rollback``: from stock kombu, and back to it.

An operator calls them. The work is in ``migration``: if a command dies, the jobs that it has not
moved are still where they were, and the next call moves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import asdict
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import click

from .progress import ProgressLine
from .session import (
    MOST_ERRORS,
    SECONDS,
    Session,
    command,
    complain,
    interruptible,
    quantity,
    superfetch,
    warn,
)

if TYPE_CHECKING:
    from ..inspector import AuditRecord
    from ..migration.from_stock import Migrated
    from ..migration.to_stock import RolledBack


MOST_QUEUES = 10  # queue lists that a line names
CONSUMERS_INTERVAL_S = 1.0  # seconds between two looks for stock consumers

_wait = quantity(
    "--wait", SECONDS, 0.0, "SECONDS", "Wait at most this long for running workers to end."
)


@command(superfetch, "migrate")
@click.option(
    "--force",
    is_flag=True,
    help="Continue although stock consumers are connected: a job that one of them still holds runs "
    "twice.",
)
@click.option(
    "--queue",
    "otherwise",
    default="",
    help="The queue for jobs whose exchange and routing key lead to no queue.",
)
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@_wait
def migrate(session: Session, wait: float, **options: Any) -> None:
    """Requeue the jobs that stock workers have left unacked.

    A stock worker is one without celery_superfetch. The jobs go to the front of their queues, the
    oldest first. The command refuses while a stock worker may still hold them.
    """
    from ..app.queues import routes_of, unacked_of
    from ..migration.from_stock import take_over
    from ..migration.stock_unacked import Unacked
    from ..model.humanize import number

    with routes_of(session.app) as routes:
        unacked = Unacked(session.reaper.database, *unacked_of(session.app))
        with _recorded(session, "migrate", bool(options["dry_run"])) as entry:
            report = _patiently(
                session, wait, lambda: take_over(unacked, routes, **options), CONSUMERS_INTERVAL_S
            )
            if entry:
                text = f"requeued {report.requeued} of {number(report.found, 'unacked job')}"
                entry.end(text, report.requeued, len(report.left))
    _say(session, report, _migrated(report))
    if report.left:
        raise click.exceptions.Exit(1)


@command(superfetch, "rollback")
@click.option(
    "--force",
    is_flag=True,
    help="Also requeue the jobs of living workers: those that run may run twice.",
)
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@_wait
def rollback(session: Session, wait: float, **options: bool) -> None:
    """Requeue all jobs, so that stock Celery can run them.

    It requeues the jobs in flight, on probation and scheduled. Stop all workers first: the command
    refuses while one lives. The dead set stays.
    """
    from ..migration.to_stock import Rollback
    from ..model.humanize import number

    progress = ProgressLine(silent=session.as_json, verb="Requeued")
    attempt = Rollback(session.reaper, progress)
    with (
        interruptible(lambda: f"{number(attempt.moved, 'job')} requeued."),
        _recorded(session, "rollback", options["dry_run"]) as entry,
    ):
        report = _patiently(session, wait, lambda: attempt.run(**options), attempt.onlooker.pause_s)
        if entry:
            text = f"requeued {number(report.requeued, 'job')}, {number(report.errors, 'error')}"
            entry.end(text, report.requeued)
    progress.end()
    _remove_beat_rows(report)
    _say(session, report, _rolled_back(report))
    left = report.in_flight + report.parked + report.probation
    if report.errors or (left and not report.dry_run):
        raise click.exceptions.Exit(1)


#: The former name of `rollback`, for scripts that use it; it is not in the help.
drain = copy(rollback)
drain.name, drain.hidden = "drain", True
superfetch.add_command(drain)


def _recorded(
    session: Session, action: str, is_dry_run: bool
) -> AbstractContextManager[AuditRecord | None]:
    """Return a block whose change is an entry of the audit list; a dry run changes nothing."""
    from .auditing import recorded

    return nullcontext() if is_dry_run else recorded(session, action, "all jobs")


def _remove_beat_rows(report: RolledBack) -> None:
    """Remove the rows by which a scheduler with a database would send the reap task for ever."""
    from ..migration.beat_rows import remove_beat_rows
    from ..model.config import REAP_ENTRY, REAP_TASK

    try:
        report.beat_rows = remove_beat_rows(dry_run=report.dry_run)
    except Exception as exc:  # a project's settings, or its database, may raise anything
        warn(
            f"the table of django-celery-beat cannot be read ({type(exc).__name__}: {exc}). "
            f"Delete its row {REAP_ENTRY!r} by hand: stock workers do not know the task "
            f"{REAP_TASK}."
        )


def _patiently(session: Session, wait: float, run: Callable[[], Any], pause_s: float) -> Any:
    """Try until no worker is in the way, or the time is over.

    Arguments:
        wait: for how many seconds. They begin after the first try, which takes long in a large
            database: a worker of another host is found dead only by looks over its `owner_ttl`.
        pause_s: seconds between two tries.
    """
    from ..errors import StillInUse

    end: float | None = None
    while True:
        try:
            return run()
        except StillInUse as exc:
            if end is None:
                end = monotonic() + wait
                if wait and not session.as_json:
                    complain(f"{exc}\n\nWaiting for them, at most {wait:g} s ...")
            left = end - monotonic()
            if left <= 0:
                raise
        sleep(min(pause_s, left))


def _say(session: Session, report: Any, lines: Iterable[str]) -> None:
    document = {**asdict(report), "queues": dict(report.queues)}
    session.say(document, lambda: [*map(session.tables.line, lines)])


def _migrated(report: Migrated) -> Iterator[str]:
    from ..model.humanize import number

    consumers = [
        f"a stock consumer is connected: {consumer}" for consumer in report.consumers or ()
    ]
    _warn_of(consumers, "stock consumers are connected")
    verb = "Would requeue" if report.dry_run else "Requeued"
    found = number(report.found, "unacked job")
    yield f"{verb} {report.requeued} of {found}{_where(report.queues)}."
    if report.gone:
        yield f"{report.gone} were acked or delivered again meanwhile, and left alone."
    for job in report.left[:MOST_ERRORS]:
        yield (
            f"Not requeued: {job.task or '(unknown task)'}[{job.task_id or job.tag}], exchange "
            f"{job.exchange!r}, routing key {job.routing_key!r}: {job.why}."
        )
    if len(report.left) > MOST_ERRORS:
        yield f"and {len(report.left) - MOST_ERRORS} more not requeued: --json lists all."
    if report.left:
        yield (
            "Declare their queues (start a worker that consumes them), or name a queue with "
            "--queue."
        )


def _rolled_back(report: RolledBack) -> Iterator[str]:
    from ..model.humanize import number  # `celery --help` does not load it

    alive = "worker {owner} is not known to be dead ({reason}): stop it"
    _warn_of([alive.format(**row) for row in report.alive], "workers must be stopped")
    for owner, reason in [*report.owners.items()][:MOST_ERRORS]:
        yield f"Worker {owner}: {reason}."
    if len(report.owners) > MOST_ERRORS:
        yield f"and {len(report.owners) - MOST_ERRORS} more workers: --json lists all."
    verb = "Would requeue" if report.dry_run else "Requeued"
    yield f"{verb} {number(report.requeued, 'job')}{_where(report.queues)}."
    for jobs, where in (
        (report.in_flight, "in flight"),
        (report.parked, "scheduled"),
        (report.probation, "on probation"),
    ):
        if jobs:
            yield f"{number(jobs, 'job')} {'is' if jobs == 1 else 'are'} still {where}."
    if rows := report.beat_rows:
        verb = "Would remove" if report.dry_run else "Removed"
        yield f"{verb} {number(len(rows), 'row')} of django-celery-beat: {', '.join(rows)}."
    if report.dead_set:
        yield (
            f"The dead set keeps its {number(report.dead_set, 'job')}: `dead list` lists them, "
            "`dead retry` requeues them."
        )
    for queue in report.paused[:MOST_ERRORS]:
        yield f"Queue {queue} is paused: stock workers do not know pauses, and run its jobs."
    if len(report.paused) > MOST_ERRORS:
        yield f"and {len(report.paused) - MOST_ERRORS} more paused queues: --json lists all."
    if report.keys:
        are = "is" if report.keys == 1 else "are"
        yield f"{number(report.keys, 'key')} of bookkeeping {are} left, without jobs."


def _warn_of(warnings: Sequence[str], noun: str) -> None:
    """Print the first few warnings, and the number of further ``noun``."""
    for text in warnings[:MOST_ERRORS]:
        warn(text)
    if len(warnings) > MOST_ERRORS:
        warn(f"{len(warnings) - MOST_ERRORS} more {noun}: --json lists all")


def _where(queues: Mapping[str, int]) -> str:
    """Return ``: celery 3, mail 1``; of many queue lists the fullest."""
    rows = sorted(((name, jobs) for name, jobs in queues.items() if jobs), key=lambda row: -row[1])
    named, others = sorted(rows[:MOST_QUEUES]), rows[MOST_QUEUES:]
    texts = [f"{name} {jobs}" for name, jobs in named]
    if others:
        total = sum(jobs for _, jobs in others)
        texts.append(f"and {total} on {len(others)} other queue lists (--json lists all)")
    return f": {', '.join(texts)}" if texts else ""
