"""``celery superfetch migrate`` and ``drain``: from stock kombu, and back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from kombu.utils.functional import retry_over_time

from .progress import Progress
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
    from ..migration.from_stock import Migrated
    from ..migration.to_stock import Drained


MOST_QUEUES = 10  # queue lists that a line names

_wait = quantity(
    "--wait", SECONDS, 0.0, "SECONDS", "Wait up to this long for workers that still run to end."
)


@command(superfetch, "migrate")
@click.option("--force", is_flag=True, help="Go on although stock consumers are connected.")
@click.option(
    "--queue",
    "otherwise",
    default="",
    help="Use it for jobs whose exchange and routing key lead nowhere.",
)
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@_wait
def migrate(session: Session, wait: float, **options: Any) -> None:
    """Take over the jobs that stock workers have left unacked.

    They go to the front of their queues, the oldest first. It refuses while a stock worker may
    still hold them.
    """
    from ..app.queues import routes_of, unacked_of
    from ..migration.from_stock import take_over
    from ..migration.stock_unacked import Unacked

    with routes_of(session.app) as routes:
        unacked = Unacked(session.reaper.database, *unacked_of(session.app))
        report = _patiently(session, wait, lambda: take_over(unacked, routes, **options))
    _say(session, report, _migrated(report))
    if report.left:
        raise click.exceptions.Exit(1)


@command(superfetch, "drain")
@click.option("--force", is_flag=True, help="Also take the jobs of living workers.")
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@_wait
def drain(session: Session, wait: float, **options: bool) -> None:
    """Give every job in flight back to its queue, so that stock kombu can go on.

    It refuses while an owner lives: stop all workers first. The dead set stays.
    """
    from ..migration.to_stock import Drain
    from ..model.words import number

    progress = Progress(silent=session.as_json, verb="Gave back")
    attempt = Drain(session.reaper, progress)
    with interruptible(lambda: f"{number(attempt.moved, 'job')} went back to their queues."):
        report = _patiently(session, wait, lambda: attempt.run(**options))
    progress.end()
    _remove_beat_rows(report)
    _say(session, report, _drained(report))
    left = report.in_flight + report.parked + report.probation
    if report.errors or (left and not report.dry_run):
        raise click.exceptions.Exit(1)


def _remove_beat_rows(report: Drained) -> None:
    """Remove the rows by which a scheduler with a database would send the reap task for ever."""
    from ..migration.beat_rows import remove_beat_rows
    from ..model.config import REAP_ENTRY, REAP_TASK

    try:
        report.beat_rows = remove_beat_rows(dry_run=report.dry_run)
    except Exception as exc:  # a project's settings, or its database, may raise anything
        warn(
            f"django-celery-beat's table cannot be asked ({type(exc).__name__}: {exc}). Delete the "
            f"row {REAP_ENTRY!r} there by hand: stock workers do not know its task {REAP_TASK}."
        )


def _patiently(session: Session, wait: float, run: Callable[[], Any]) -> Any:
    """Try each second until nobody is in the way, or the time is over."""
    from ..errors import StillInUse

    def say(exc: Exception, _: object, tries: int) -> float:
        if not (tries or session.as_json):
            complain(f"{exc}\n\nThey are waited for, up to {wait:g} s ...")
        return 1.0

    tries = None if wait else 0
    return retry_over_time(run, StillInUse, errback=say, max_retries=tries, timeout=wait)


def _say(session: Session, report: Any, lines: Iterable[str]) -> None:
    document = {**asdict(report), "queues": dict(report.queues)}
    session.say(document, lambda: [*map(session.tables.line, lines)])


def _migrated(report: Migrated) -> Iterator[str]:
    from ..model.words import number

    consumers = [
        f"a stock consumer is connected: {consumer}" for consumer in report.consumers or ()
    ]
    _warn_of(consumers, "stock consumers are connected")
    verb = "Would take over" if report.dry_run else "Took over"
    yield f"{verb} {report.taken} of {number(report.found, 'unacked job')}{_where(report.queues)}."
    if report.gone:
        yield f"{report.gone} were acked or delivered anew meanwhile: left."
    for job in report.left[:MOST_ERRORS]:
        yield (
            f"Left: {job.task or '(unknown task)'}[{job.task_id or job.tag}], exchange "
            f"{job.exchange!r}, routing key {job.routing_key!r}: {job.why}."
        )
    if len(report.left) > MOST_ERRORS:
        yield f"and {len(report.left) - MOST_ERRORS} more are left: --json has them all."
    if report.left:
        yield "Declare their queues (start a worker that consumes them), or name one by --queue."


def _drained(report: Drained) -> Iterator[str]:
    from ..model.words import number  # `celery --help` pays for nothing of ours

    alive = "{owner} is not known to be dead ({reason}): it has to be stopped"
    _warn_of([alive.format(**row) for row in report.alive], "workers have to be stopped")
    for owner, reason in [*report.owners.items()][:MOST_ERRORS]:
        yield f"Worker {owner}: {reason}."
    if len(report.owners) > MOST_ERRORS:
        yield f"and {len(report.owners) - MOST_ERRORS} more workers: --json has them all."
    verb = "Would give back" if report.dry_run else "Gave back"
    yield f"{verb} {number(report.given_back, 'job')}{_where(report.queues)}."
    for jobs, where in (
        (report.in_flight, "in private lists"),
        (report.parked, "parked"),
        (report.probation, "on probation"),
    ):
        if jobs:
            yield f"{number(jobs, 'job')} {'is' if jobs == 1 else 'are'} {where}."
    if rows := report.beat_rows:
        verb = "Would remove" if report.dry_run else "Removed"
        yield f"{verb} {number(len(rows), 'row')} of django-celery-beat: {', '.join(rows)}."
    if report.dead_set:
        yield (
            f"The dead set keeps its {number(report.dead_set, 'job')}: `dead list` shows what is "
            "there, `dead retry` puts a job back on its queue."
        )
    if report.keys:
        are, hold = ("is", "it holds") if report.keys == 1 else ("are", "they hold")
        yield f"{number(report.keys, 'key')} of bookkeeping {are} left; {hold} no job."


def _warn_of(warnings: Sequence[str], what: str) -> None:
    """Warn of the first few, and of how many ``what`` there are more."""
    for text in warnings[:MOST_ERRORS]:
        warn(text)
    if len(warnings) > MOST_ERRORS:
        warn(f"{len(warnings) - MOST_ERRORS} more {what}: --json has them all")


def _where(queues: Mapping[str, int]) -> str:
    """``: celery 3, mail 1``; of many queue lists the fullest."""
    rows = sorted(((name, jobs) for name, jobs in queues.items() if jobs), key=lambda row: -row[1])
    named, others = sorted(rows[:MOST_QUEUES]), rows[MOST_QUEUES:]
    texts = [f"{name} {jobs}" for name, jobs in named]
    if others:
        total = sum(jobs for _, jobs in others)
        texts.append(f"and {total} on {len(others)} other queue lists (--json has them all)")
    return f": {', '.join(texts)}" if texts else ""
