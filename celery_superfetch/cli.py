"""``celery -A app superfetch ...``: look at owners and the dead set, reap, retry."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from celery.bin.base import CeleryCommand, handle_preload_options

if TYPE_CHECKING:
    from celery import Celery

    from .cli_tables import Tables
    from .dead_set import DeadJob, DeadSet
    from .reaper import Reaper

# The rest of the package is imported by the commands: `celery --help` pays for none of it, and
# whatever may be wrong with it, `celery` itself goes on working.


@click.group(name="superfetch")
@click.pass_context
@handle_preload_options
def superfetch(ctx: click.Context, **_: Any) -> None:
    """Reliable fetch: owners, reaper and dead set."""


@superfetch.group(name="dead")
def dead() -> None:
    """Jobs that were killed: list, show, retry, delete, purge.

    ID is a job's id, the start of it, or its Celery task id.
    """


class Session:
    """What a command works with."""

    def __init__(self, app: Celery, reaper: Reaper, tables: Tables, as_json: bool) -> None:
        self.app = app
        self.reaper = reaper
        self.dead_set: DeadSet = reaper.dead_set
        self.tables = tables
        self.as_json = as_json

    def say(self, document: Any, text: Callable[[], object]) -> None:
        """Print the document with ``--json``, else what ``text`` prints."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            text()


def command(group: click.Group, name: str) -> Callable[[Callable[..., Any]], Any]:
    """A sub-command that gets a session, and says its errors without a traceback."""

    def decorate(function: Callable[..., Any]) -> Any:
        @click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
        @click.pass_context
        @functools.wraps(function)
        def run(ctx: click.Context, /, *args: Any, as_json: bool, **kwargs: Any) -> Any:
            with _session(ctx, as_json) as session:
                return function(session, *args, **kwargs)

        return group.command(name=name, cls=CeleryCommand)(run)

    return decorate


@contextmanager
def _session(ctx: click.Context, as_json: bool) -> Iterator[Session]:
    from redis.exceptions import RedisError

    from .cli_tables import Tables
    from .connection import client_of
    from .errors import SuperfetchError
    from .tasks import reaper_of

    app = ctx.obj.app
    try:
        client = client_of(app)
    except SuperfetchError as exc:
        raise click.ClickException(f"{exc}{_which_app(app)}") from exc
    except KeyError as exc:  # kombu's "No such transport"
        raise click.ClickException(f"broker_url is of no use: {exc.args[0]}") from exc
    except (RedisError, OSError) as exc:
        raise click.ClickException(_unreachable(app, exc)) from exc
    try:
        yield Session(app, reaper_of(app, client), Tables(ctx.obj.no_color), as_json)
    except SuperfetchError as exc:
        raise click.ClickException(str(exc)) from exc
    except RedisError as exc:
        raise click.ClickException(_unreachable(app, exc)) from exc
    finally:
        client.close()


def _unreachable(app: Celery, exc: Exception) -> str:
    uri = app.connection_for_read().as_uri()
    served = "" if uri.startswith("redis") else " is not served by celery_superfetch and"
    return f"the broker ({uri}){served} cannot be asked: {exc}{_which_app(app)}"


def _which_app(app: Celery) -> str:
    """A hint where nobody said which app: Celery then makes up one of its own."""
    return "; name the app: celery -A your_app superfetch ..." if app.main == "default" else ""


@command(superfetch, "status")
def status(session: Session) -> None:
    """Owners with their verdicts, queues, dead set and counters. Only reads."""
    from .cli_status import status_of

    found = status_of(session.app, session.reaper)
    session.say(found, lambda: session.tables.status(found))


@command(superfetch, "reap")
@click.option("--full", is_flag=True, help="Also look for private lists that nobody registered.")
@click.option("--dry-run", is_flag=True, help="Judge and count; change nothing.")
def reap(session: Session, full: bool, dry_run: bool) -> None:
    """One pass now, whoever else may be reaping."""
    _know_tasks(session.app)
    report = session.reaper.reap(full=full, dry_run=dry_run)
    dead = {owner: reason.value for owner, reason in report.dead.items()}
    session.say({**vars(report), "dead": dead}, lambda: session.tables.line(str(report)))
    if report.errors:
        raise click.exceptions.Exit(1)


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
    _know_tasks(session.app)
    if queue and queue not in session.app.amqp.queues:
        _warn(f"the app has no queue {queue!r}; a worker has to be started with -Q {queue}")

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


def _know_tasks(app: Celery) -> None:
    """Load the app's task modules as a worker does: the guard spares what it does not know."""
    app.loader.import_default_modules()


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
        _warn(f"the result of {job.task_id} stays FAILURE until the job has run ({exc!r})")


def _warn(text: str) -> None:
    click.echo(f"Warning: {text}", err=True)
