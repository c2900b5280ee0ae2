"""``celery superfetch dead ...``: lists, shows, retries and deletes dead-lettered jobs.

An operator calls it. Scripts move or delete the jobs batch by batch (``app.dead_set``): if the
command dies, each job is in the dead set, or it is on the queue that it was retried to, or it was
deleted. The audit list then has the number of jobs that were dealt with before the last batch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from .progress import ProgressLine
from .session import (
    Session,
    age,
    command,
    interruptible,
    know_tasks,
    quantity,
    superfetch,
    warn,
)

if TYPE_CHECKING:
    from ..app.dead_set import Retried


@superfetch.group(name="dead")
def dead() -> None:
    """Work with the jobs in the dead set.

    ID is a job's id in the dead set or its Celery task id, or the start of either.
    """


CONDITIONS = (
    click.option("--task", help="Only jobs of this task; * matches anything."),
    click.option("--queue", help="Only jobs of this queue; * matches anything."),
    click.option("--reason", help="Only jobs with this text in their reason."),
    click.option(
        "--older-than",
        type=age,
        help="Only jobs moved to the dead set longer than AGE ago, such as 15m, 36h or 7d.",
    ),
    click.option(
        "--newer-than",
        type=age,
        help="Only jobs moved to the dead set within the last AGE, such as 15m, 36h or 7d.",
    ),
)


def conditions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that pick jobs; their names are those of ``DeadFilter``."""
    for option in reversed(CONDITIONS):
        function = option(function)
    return function


@command(dead, "list")
@conditions
@quantity("--first", click.IntRange(0), 0, "N", "Skip this many of the newest jobs.")
@quantity("--count", click.IntRange(1), 50, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
def dead_list(session: Session, first: int, count: int, wide: bool, **conditions: Any) -> None:
    """List the jobs of the dead set, the newest first."""
    size = len(session.dead_set)
    # One more than is shown: if it exists, there are more.
    page = session.dead_set.page(first, count + 1, **conditions)
    jobs, has_more = [job.as_dict() for job in page[:count]], len(page) > count

    def text() -> None:
        from ..model.humanize import number
        from .tables import DEAD_JOB, DEAD_SPARE

        tables, now = session.tables, session.reaper.database.server_time()
        picked = any(value is not None for value in conditions.values())
        if wide:
            tables.widen()
        rows = (tables.dead_row(_shown(session, job), now) for job in jobs)
        tables.table(DEAD_JOB, rows, DEAD_SPARE)
        if jobs:
            of = "the jobs that match" if picked else number(size, "job")
            next_page = f" More: --first {first + len(jobs)}." if has_more else ""
            tables.line(f"{first + 1} to {first + len(jobs)} of {of}, the newest first.{next_page}")
        elif picked and size:
            jobs_there = number(size, "job")
            tables.line(f"None of the {jobs_there} from number {first + 1} on matches.")
        else:
            tables.line(
                f"The dead set has only {number(size, 'job')}."
                if size
                else "The dead set is empty."
            )

    session.say({"size": size, "more": has_more, "jobs": jobs}, text)


@command(dead, "show")
@click.argument("id", metavar="ID")
def dead_show(session: Session, id: str) -> None:
    """Show one dead job with its arguments and its history.

    ID is the job's id in the dead set or its Celery task id, or the start of either.
    """
    job = session.dead_set.get(id).as_dict()
    session.say(job, lambda: session.tables.dead_job(_shown(session, job)))


def _shown(session: Session, job: dict[str, Any]) -> dict[str, Any]:
    """Return a job with the name of its queue in place of its queue list."""
    return {**job, "queue": _queue(session, job["queue"])}


def _queue(session: Session, queue_list: str | None) -> str:
    return session.dead_set.database.queue_of(queue_list or "")


@command(dead, "retry")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Retry all jobs of the dead set.")
@conditions
@click.option("--to", metavar="QUEUE", help="Requeue them to this queue instead of their own.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_retry(
    session: Session,
    ids: tuple[str, ...],
    everything: bool,
    to: str | None,
    yes: bool,
    **conditions: Any,
) -> None:
    """Requeue dead jobs as new ones, without strikes.

    Name the jobs by ID (a job's id in the dead set or its Celery task id, or the start of either),
    or select them with filters, or use --all. The command asks for confirmation, unless you name
    all jobs by whole IDs. With --yes it does not ask, and each ID has to be whole.
    """
    from ..app.dead_set import Retried
    from ..model.arguments import printable
    from ..model.humanize import number
    from . import auditing
    from .named_jobs import NamedJobs

    picked = any(value is not None for value in conditions.values())
    if ids and (picked or everything):
        raise click.UsageError(
            "name jobs by ID, or select them with filters, not both (--queue selects jobs of a "
            "queue; --to QUEUE is where they go)"
        )
    if everything and picked:
        raise click.UsageError("--all cannot be combined with filters: leave out one of the two")
    if not (ids or picked or everything):
        raise click.UsageError("no jobs selected: name them by ID, use filters, or --all")
    if to == "":
        raise click.UsageError("--to must be the name of a queue, got ''")
    know_tasks(session.app)
    if to and to not in session.app.amqp.queues:
        warn(f"the app has no queue {to!r}: start a worker with -Q {shlex.quote(to)}")
    named = NamedJobs.of(session, ids, yes)
    if ids:
        named.confirm("Requeue", yes)
        jobs, subject = [*named.jobs], auditing.subject_of_ids([*named.jobs])
    else:
        jobs = [job.id for job in session.dead_set.find(oldest_first=True, **conditions)]
        subject, where = auditing.subject_of_filter(conditions), f" to {to!r}" if to else ""
        if jobs and not yes:
            text = f"Requeue {auditing.jobs_of(len(jobs), subject)}{where}?"
            click.confirm(printable(text), abort=True, err=True)
    progress = ProgressLine(len(jobs), silent=bool(ids))
    subject += f"; to queue {to}" if to else ""
    done: list[Retried] = []
    if jobs:
        with (
            interruptible(lambda: f"{progress.done} of {progress.total} jobs were processed."),
            auditing.recorded(session, "dead retry", subject, len(jobs)) as entry,
        ):
            done = session.dead_set.retry_many(jobs, to, _both(progress, entry.progress))
            count = sum(outcome.error is None for outcome in done)
            text = f"requeued {count} of {number(len(jobs), 'job')}"
            entry.end(text, count, len(done) - count)
    unknown = [Retried(error["id"], error=error["error"]) for error in named.errors]
    _say_retried(session, [*unknown, *done], each=bool(ids))


def _both(line: Callable[[int], object], store: Callable[[int], object]) -> Callable[[int], object]:
    """Return a progress callback that prints a line and stores the count."""

    def show(done: int) -> None:
        line(done)
        store(done)

    return show


def _say_retried(session: Session, done: Sequence[Retried], each: bool) -> None:
    rows = [outcome for outcome in done if outcome.error is None]
    errors = [
        {"id": outcome.id, "error": outcome.error} for outcome in done if outcome.error is not None
    ]
    warnings = [outcome.warning for outcome in rows if outcome.warning]
    for text in warnings if each else warnings[:1]:
        warn(text)
    if len(warnings) > 1 and not each:
        warn(f"the same holds for {len(warnings) - 1} more results")
    from ..model.humanize import number

    lines = [
        f"Requeued to {_queue(session, row.queue)}: {row.task}[{row.task_id or row.id}]"
        for row in rows
    ]
    if not each:
        lines = [f"Requeued {len(rows)} of {number(len(done), 'job')}."]
    fields = ("id", "task", "task_id", "queue")
    retried = [{name: getattr(row, name) for name in fields} for row in rows]
    session.end({"retried": retried}, errors, lines)


@command(dead, "delete")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@conditions
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_delete(session: Session, ids: tuple[str, ...], yes: bool, **conditions: Any) -> None:
    """Delete dead jobs for good.

    Name the jobs by ID (a job's id in the dead set or its Celery task id, or the start of either),
    or select them with filters; `dead purge` deletes all. With --yes each ID has to be whole.
    """
    from ..app.dead_set import GONE_MEANWHILE
    from ..model.arguments import printable, task_title
    from ..model.humanize import number
    from ..store.database import chunks
    from ..store.dead_set import DEAD_BATCH
    from . import auditing
    from .named_jobs import NamedJobs

    picked = any(value is not None for value in conditions.values())
    if ids and picked:
        raise click.UsageError("name jobs by ID, or select them with filters, not both")
    if not (ids or picked):
        raise click.UsageError("no jobs selected: name them by ID, or use filters")
    named = NamedJobs.of(session, ids, yes)
    if ids:
        named.confirm("Delete", yes, always=True)
        subject = auditing.subject_of_ids([*named.jobs])
    else:
        found = session.dead_set.find(oldest_first=True, **conditions)
        named.jobs = {job.id: f"{task_title(job.task)}[{job.task_id}]" for job in found}
        subject = auditing.subject_of_filter(conditions)
        if named.jobs and not yes:
            text = f"Delete {auditing.jobs_of(len(named.jobs), subject)} for good?"
            click.confirm(printable(text), abort=True, err=True)
    progress = ProgressLine(len(named.jobs), silent=bool(ids))
    deleted: list[str] = []
    if named.jobs:
        with (
            interruptible(lambda: f"{len(deleted)} of {len(named.jobs)} jobs were deleted."),
            auditing.recorded(session, "dead delete", subject, len(named.jobs)) as entry,
        ):
            for some in chunks([*named.jobs], DEAD_BATCH):
                there = session.dead_set.contains(some)
                session.dead_set.delete(*some)
                deleted += [id for id, is_there in zip(some, there, strict=True) if is_there]
                progress(progress.done + len(some))
                entry.progress(len(deleted), progress.done - len(deleted))
            text = f"deleted {len(deleted)} of {number(len(named.jobs), 'job')}"
            entry.end(text, len(deleted), len(named.jobs) - len(deleted))
    gone = named.jobs.keys() - {*deleted}
    errors = [*named.errors, *({"id": id, "error": GONE_MEANWHILE.format(id)} for id in gone)]
    # The operator may have named a job by the start of its id: the title shows which one it was.
    lines = [f"Deleted {id}: {named.jobs[id]}" for id in deleted]
    if not ids:
        lines = [f"Deleted {len(deleted)} of {number(len(named.jobs), 'job')}."]
    session.end({"deleted": deleted}, errors, lines)


@command(dead, "purge")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def dead_purge(session: Session, yes: bool) -> None:
    """Delete all jobs of the dead set for good."""
    from ..model.humanize import number
    from . import auditing

    size = len(session.dead_set)
    if size and not yes:
        jobs = "the only job" if size == 1 else f"all {size} jobs"
        click.confirm(f"Delete {jobs} of the dead set for good?", abort=True, err=True)
    with (
        interruptible(lambda: f"{size - len(session.dead_set)} of {size} jobs were deleted."),
        auditing.recorded(session, "dead purge", "all", size) as entry,
    ):
        deleted = session.dead_set.purge()
        entry.end(f"deleted {number(deleted, 'job')}", deleted)
    session.say({"deleted": deleted}, lambda: click.echo(f"Deleted {number(deleted, 'job')}."))
