"""``celery superfetch dead ...``: jobs that were killed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .progress import Progress
from .session import (
    Session,
    command,
    complain,
    interruptible,
    know_tasks,
    quantity,
    superfetch,
    warn,
)

if TYPE_CHECKING:
    from ..app.dead_set import Retried

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@superfetch.group(name="dead")
def dead() -> None:
    """Work with the jobs in the dead set.

    ID is a job's id or its Celery task id, or the start of either.
    """


def age(text: str) -> float:
    """A time that has passed, in seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text)
    if not match:
        raise click.BadParameter(f"{text!r} is no age: write 90, 90s, 15m, 36h or 7d")
    return float(match[1]) * UNITS[match[2]]


CONDITIONS = (
    click.option("--task", help="Only jobs of this task; * stands for anything."),
    click.option("--queue", help="Only jobs from this queue; * stands for anything."),
    click.option("--reason", help="Only jobs with this text in their reason."),
    click.option("--older-than", type=age, help="Only jobs that died longer ago: 15m, 36h, 7d."),
    click.option("--newer-than", type=age, help="Only jobs that died since then: 15m, 36h, 7d."),
)


def conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that pick jobs; the names are those of ``DeadFilter``."""
    for option in reversed(CONDITIONS):
        function = option(function)
    return function


@command(dead, "list")
@conditions
@quantity("--first", click.IntRange(0), 0, "N", "Skip this many of the newest jobs.")
@quantity("--count", click.IntRange(1), 50, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
def dead_list(session: Session, first: int, count: int, wide: bool, **conditions: Any) -> None:
    """List killed jobs, the newest first."""
    size = len(session.dead_set)
    # One more than is shown tells whether there are more.
    page = session.dead_set.page(first, count + 1, **conditions)
    jobs, has_more = [job.as_dict() for job in page[:count]], len(page) > count

    def text() -> None:
        from ..model.words import number
        from .tables import DEAD_JOB, DEAD_SPARE

        tables, now = session.tables, session.reaper.database.server_time()
        picked = any(value is not None for value in conditions.values())
        if wide:
            tables.widen()
        rows = (tables.dead_row(_shown(session, job), now) for job in jobs)
        tables.table(DEAD_JOB, rows, DEAD_SPARE)
        if jobs:
            of = "those that meet the conditions" if picked else number(size, "job")
            rest = f" More: --first {first + len(jobs)}." if has_more else ""
            tables.line(f"{first + 1} to {first + len(jobs)} of {of}, the newest first.{rest}")
        elif picked and size:
            jobs_there = number(size, "job")
            tables.line(
                f"None of the {jobs_there} from number {first + 1} on meets the conditions."
            )
        else:
            tables.line(f"It has only {number(size, 'job')}." if size else "The dead set is empty.")

    session.say({"size": size, "more": has_more, "jobs": jobs}, text)


@command(dead, "show")
@click.argument("id", metavar="ID")
def dead_show(session: Session, id: str) -> None:
    """Show one killed job with its arguments and its history."""
    job = session.dead_set.get(id).as_dict()
    session.say(job, lambda: session.tables.dead_job(_shown(session, job)))


def _shown(session: Session, job: dict[str, Any]) -> dict[str, Any]:
    """A job for people, who know its queue and not the list of its priority."""
    return {**job, "queue": _queue(session, job["queue"])}


def _queue(session: Session, queue_list: str | None) -> str:
    return (queue_list or "").partition(session.dead_set.separator)[0]


@command(dead, "retry")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Put back all jobs of the dead set.")
@conditions
@click.option("--to", metavar="QUEUE", help="Put them on this queue instead of their own.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_retry(
    session: Session,
    ids: tuple[str, ...],
    everything: bool,
    to: str | None,
    yes: bool,
    **conditions: Any,
) -> None:
    """Put killed jobs back on their queues, as if they were new.

    Name the jobs by ID, or pick them with conditions, or say --all.
    """
    picked = any(value is not None for value in conditions.values())
    if ids and (picked or everything):
        raise click.UsageError(
            "name jobs by ID, or pick them with conditions; not both. (--queue picks those from "
            "a queue; --to QUEUE says where they go.)"
        )
    if everything and picked:
        raise click.UsageError("--all leaves no room for conditions: leave out one of the two")
    if not (ids or picked or everything):
        raise click.UsageError("which jobs? Name them by ID, give conditions, or say --all")
    if to == "":
        raise click.UsageError("--to needs the name of a queue")
    know_tasks(session.app)
    if to and to not in session.app.amqp.queues:
        warn(f"the app has no queue {to!r}; a worker has to be started with -Q {shlex.quote(to)}")
    jobs: Sequence[str] = tuple(dict.fromkeys(ids))
    if not ids:
        jobs = [job.id for job in session.dead_set.find(oldest_first=True, **conditions)]
        where = f" on {to!r}" if to else ""
        if jobs and not yes:
            from ..model.words import number

            click.confirm(f"Put {number(len(jobs), 'job')} back{where}?", abort=True, err=True)
    progress = Progress(len(jobs), silent=bool(ids))
    with interruptible(lambda: f"{progress.done} of {progress.total} jobs were tried."):
        done = session.dead_set.retry_many(jobs, to, progress)
    _say_retried(session, done, each=bool(ids))


def _say_retried(session: Session, done: Sequence[Retried], each: bool) -> None:
    rows = [outcome for outcome in done if outcome.error is None]
    errors = [
        {"id": outcome.id, "error": outcome.error} for outcome in done if outcome.error is not None
    ]
    warnings = [outcome.warning for outcome in rows if outcome.warning]
    for text in warnings if each else warnings[:1]:
        warn(text)
    if len(warnings) > 1 and not each:
        warn(f"and so it is with {len(warnings) - 1} more results")
    from ..model.words import number

    lines = [
        f"Put back on {_queue(session, row.queue)}: {row.task}[{row.task_id or row.id}]"
        for row in rows
    ]
    if not each:
        lines = [f"Put back {len(rows)} of {number(len(done), 'job')}."]
    fields = ("id", "task", "task_id", "queue")
    retried = [{name: getattr(row, name) for name in fields} for row in rows]
    session.end({"retried": retried}, errors, lines)


@command(dead, "delete")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_delete(session: Session, ids: tuple[str, ...], yes: bool) -> None:
    """Delete killed jobs for good."""
    from ..app.dead_set import GONE
    from ..errors import JobNotFound
    from ..model.arguments import printable, task_title
    from ..model.words import number

    titles: dict[str, str] = {}
    errors: list[dict[str, Any]] = []
    for id in dict.fromkeys(ids):
        try:
            job = session.dead_set.get(id)
            titles[job.id] = f"{task_title(job.task)}[{job.task_id}]"
        except JobNotFound as exc:
            errors.append({"id": id, "error": str(exc)})
    if titles and not yes:
        for title in titles.values():
            complain(printable(title))
        click.confirm(f"Delete {number(len(titles), 'job')} for good?", abort=True, err=True)
    deleted: dict[str, str] = {}
    with interruptible(lambda: f"{len(deleted)} of {len(titles)} jobs were deleted."):
        for id, title in titles.items():
            if session.dead_set.delete(id):
                deleted[id] = title
    errors += [{"id": id, "error": GONE.format(id)} for id in titles.keys() - deleted.keys()]
    # By its start an id may be another's than the one that was meant.
    lines = [f"Deleted {id}: {title}" for id, title in deleted.items()]
    session.end({"deleted": [*deleted]}, errors, lines)


@command(dead, "purge")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_purge(session: Session, yes: bool) -> None:
    """Delete all jobs of the dead set for good."""
    from ..model.words import number

    size = len(session.dead_set)
    if size and not yes:
        jobs = "the only job" if size == 1 else f"all {size} jobs"
        click.confirm(f"Delete {jobs} of the dead set for good?", abort=True, err=True)
    with interruptible(lambda: f"{size - len(session.dead_set)} of {size} jobs were deleted."):
        deleted = session.dead_set.purge()
    session.say({"deleted": deleted}, lambda: click.echo(f"Deleted {number(deleted, 'job')}."))
