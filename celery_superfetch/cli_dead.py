"""``celery superfetch dead ...``: jobs that were killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from .cli_session import Session, command, know_tasks, superfetch, warn

if TYPE_CHECKING:
    from celery import Celery

    from .dead_set import DeadJob


@superfetch.group(name="dead")
def dead() -> None:
    """Jobs that were killed: list, show, retry, delete, purge.

    ID is a job's id, the start of it, or its Celery task id.
    """


@command(dead, "list")
@click.option("--first", type=click.IntRange(0), default=0, help="Skip so many of the newest.")
@click.option(
    "--count", type=click.IntRange(1), default=50, show_default=True, help="Show so many."
)
def dead_list(session: Session, first: int, count: int) -> None:
    """Killed jobs, the newest first."""
    size, jobs = session.dead_set.size(), session.dead_set.page(first, count)
    document = {"size": size, "jobs": [_document(job) for job in jobs]}
    session.say(document, lambda: session.tables.dead_jobs(size, first, jobs))


@command(dead, "show")
@click.argument("id", metavar="ID")
def dead_show(session: Session, id: str) -> None:
    """One killed job, whole."""
    document = _document(session.dead_set.get(id))
    session.say(document, lambda: session.tables.dead_job(document))


@command(dead, "retry")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--queue", help="Put them on this queue instead of their own.")
def dead_retry(session: Session, ids: tuple[str, ...], queue: str | None) -> None:
    """Put killed jobs back on their queues, as if they were new."""
    know_tasks(session.app)
    if queue and queue not in session.app.amqp.queues:
        warn(f"the app has no queue {queue!r}; a worker has to be started with -Q {queue}")

    def retry(job: DeadJob) -> dict[str, Any] | None:
        target = queue or job.queue_list
        session.dead_set.check_queue(target)
        # Before the job can run again, or its new result would be the one that is forgotten.
        _forget_result(session.app, job)
        if not session.dead_set.retry(job, target):
            return None
        return {"id": job.id, "task": job.task, "task_id": job.task_id, "queue": target}

    _each(
        session,
        ids,
        "retried",
        retry,
        lambda row: f"Put back on {row['queue']}: {row['task']}[{row['task_id'] or row['id']}]",
    )


@command(dead, "delete")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def dead_delete(session: Session, ids: tuple[str, ...]) -> None:
    """Delete killed jobs for good."""
    _each(
        session,
        ids,
        "deleted",
        lambda job: job.id if session.dead_set.delete(job.id) else None,
        lambda id: f"Deleted {id}",
    )


@command(dead, "purge")
@click.option("--yes", is_flag=True, help="Do not ask.")
def dead_purge(session: Session, yes: bool) -> None:
    """Delete everything in the dead set for good."""
    size = session.dead_set.size()
    if size and not yes:
        click.confirm(f"Delete all {size} jobs of the dead set for good?", abort=True, err=True)
    deleted = session.dead_set.purge()
    session.say({"deleted": deleted}, lambda: click.echo(f"Deleted {deleted} jobs."))


def _each(
    session: Session,
    ids: tuple[str, ...],
    done: str,
    do: Callable[[DeadJob], Any],
    text: Callable[[Any], str],
) -> None:
    """Do something to each job; one that is not there does not hold up the others."""
    from redis.exceptions import ResponseError

    from .errors import JobNotFound, WrongType

    rows: list[Any] = []
    errors: list[dict[str, str]] = []
    for id in ids:
        try:
            row = do(session.dead_set.get(id))
            if row is None:
                raise JobNotFound(f"no job {id!r} in the dead set: somebody else was quicker")
            rows.append(row)
        except (JobNotFound, WrongType, ResponseError) as exc:
            errors.append({"id": id, "error": str(exc)})
    session.say({done: rows, "errors": errors}, lambda: _lines(map(text, rows)))
    for error in errors:
        click.echo(f"Error: {error['id']}: {error['error']}", err=True)
    if errors:
        raise click.exceptions.Exit(1)


def _lines(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo(text)


def _document(job: DeadJob) -> dict[str, Any]:
    from .cli_status import utc

    return {**job.as_dict(), "time_of_death": utc(job.died_at / 1000)}


def _forget_result(app: Celery, job: DeadJob) -> None:
    """The caller's result says FAILURE; the job is pending again."""
    if job.task_id is None:
        return
    from celery import states

    try:
        result = (app.tasks.get(job.task) or app).AsyncResult(job.task_id)
        if result.state == states.FAILURE:
            result.forget()
    except Exception as exc:  # no backend, or one that cannot be asked: the job runs all the same
        warn(f"the result of {job.task_id} stays FAILURE until the job has run ({exc!r})")
