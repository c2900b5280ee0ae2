"""``celery superfetch queue``: shows, pauses, resumes and forgets queues.

An operator calls it. `show` only reads. One write begins or ends a pause, so if the process dies,
that is done, or it is not. `forget` sends two writes: if the process dies between them, a second
`forget` does the rest. The entry of such a change in the audit list stays ``under way``.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from .session import Session, command, superfetch

if TYPE_CHECKING:
    from ..inspector import Pause
    from .pauses import Concern


@superfetch.group(name="queue")
def queue() -> None:
    """Show one queue, pause and resume queues, and forget removed ones."""


@command(queue, "show")
@click.argument("name")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
def show(session: Session, name: str, wide: bool) -> None:
    """Show queue NAME: what waits, which workers consume it, its pause. Read-only."""
    from ..app.console import load_part

    judged = load_part("judge")(session.inspector)
    view = judged.queue_view(session.inspector, name)
    if view is None:
        raise click.ClickException(
            f"Queue {name!r} is unknown: no setting, worker or job names it. `status --wide` lists "
            "all queues."
        )
    if wide:
        session.tables.widen()
    session.say(view, lambda: judged.print_queue(session.tables, view))


@command(queue, "pause")
@click.argument("name")
@click.option(
    "--force", is_flag=True, help="Also pause a queue that no setting, worker or job names yet."
)
def pause(session: Session, name: str, force: bool) -> None:
    """Pause queue NAME for all workers, until it is resumed.

    Running jobs continue, and no further job of the queue starts, also after a restart of the
    workers or of Redis: they wait on the queue, in their order. Producers notice nothing.
    """
    from ..model import humanize
    from . import auditing, pauses

    with auditing.recorded(session, "queue pause", name) as entry:
        stored, is_new = pauses.pause(session.inspector, name, auditing.operator(), force=force)
        entry.end("paused" if is_new else "it was paused already")
    concern = pauses.concern(session.inspector, name)

    def say() -> None:
        if is_new:
            session.tables.line(f"Paused queue {name}: {concern}.")
        else:
            since, who = _since(session, stored), f" by {stored.by}" if stored.by else ""
            session.tables.line(f"Queue {name} is paused already{since}{who}: {concern}.")
        if concern.workers:
            session.tables.line(
                "Workers start no further job of it, each worker from its next heartbeat on, "
                f"within {concern.seconds:g} s. Running jobs continue."
            )
        session.tables.line(f"End it with `{humanize.command()} queue resume {shlex.quote(name)}`.")

    row = {"queue": name, "paused_at": _utc(stored.at), "by": stored.by, "new": is_new}
    session.say({**row, **_counts(concern)}, say)


@command(queue, "resume")
@click.argument("name")
def resume(session: Session, name: str) -> None:
    """End the pause of queue NAME: workers claim its jobs again."""
    from . import auditing, pauses

    inspector = session.inspector
    with auditing.recorded(session, "queue resume", name) as entry:
        ended = inspector.paused.resume(name)
        entry.end("it was not paused" if ended is None else "resumed")
    if ended is None:
        others = ", ".join(sorted(inspector.paused.all())[: pauses.QUEUES_LISTED]) or "none"
        raise click.ClickException(f"Queue {name!r} is not paused. Paused queues: {others}.")
    concern = pauses.concern(inspector, name)

    def say() -> None:
        session.tables.line(f"Resumed queue {name}: {concern}.")
        if concern.workers:
            session.tables.line(f"Workers claim its jobs again within {concern.seconds + 1:g} s.")

    row = {"queue": name, "paused_at": _utc(ended.at), "by": ended.by}
    session.say({**row, **_counts(concern)}, say)


def _counts(concern: Concern) -> dict[str, int]:
    names = "workers", "waiting", "probation", "parked"
    return {name: getattr(concern, name) for name in names}


def _utc(ms: int) -> str | None:
    from ..model.dead_job import utc

    return utc(ms / 1000) if ms else None


def _since(session: Session, stored: Pause) -> str:
    from ..model.humanize import span

    if not stored.at:
        return ""
    return f" for {span(max(0, session.inspector.database.server_time() - stored.at) / 1000)}"


@command(queue, "forget")
@click.argument("name")
def forget(session: Session, name: str) -> None:
    """Forget queue NAME, which was removed on purpose.

    Its jobs stay where they are. Without this command, jobs on a queue without a worker are
    reported for at least 7 days after its last worker left. A reap pass reports them again if it
    finds kombu's binding of the queue.
    """
    from ..model import humanize
    from . import auditing

    inspector = session.inspector
    registry, queue_of = inspector.registry, inspector.database.queue_of
    known = {*registry.served(), *inspector.queues.noted()}
    lists = sorted(queue_list for queue_list in known if queue_of(queue_list) == name)
    owners = [
        record.owner
        for record in registry.records(registry.owners()).values()
        if not record.lists.keys().isdisjoint(lists)
    ]
    jobs = sum(
        (length if isinstance(length, int) else 0) + probation
        for length, probation in inspector.queues.lengths(lists)
    )
    if owners:
        raise click.ClickException(
            f"Queue {name} has a worker, so it was not forgotten (owner={owners[0]}). Stop the "
            "worker first, or let it consume other queues."
        )
    with auditing.recorded(session, "queue forget", name) as entry:
        is_known = registry.forget_served(lists)
        entry.end("forgotten" if is_known else "the queue was unknown")
    if not is_known:
        raise click.ClickException(
            f"Queue {name} is unknown: no worker has consumed it within 7 days (or it was "
            "forgotten already), and no reap pass has seen a job on it. Check the name with "
            "`status`."
        )

    def say() -> None:
        session.tables.line(f"Forgot queue {name}.")
        if jobs:
            celery = humanize.command().removesuffix(" superfetch")
            remain, them = ("remains", "it") if jobs == 1 else ("remain", "them")
            session.tables.line(
                f"{humanize.number(jobs, 'job')} on it {remain} in Redis: delete {them} with "
                f"`{celery} purge -Q {shlex.quote(name)}`, or start a worker that consumes it."
            )

    session.say({"queue": name, "lists": lists, "jobs": jobs}, say)
