"""``celery superfetch queue``: which queues are expected to have a worker."""

from __future__ import annotations

import shlex

import click

from .session import Session, command, superfetch


@superfetch.group(name="queue")
def queue() -> None:
    """Manage the queues that are expected to have a worker."""


@command(queue, "forget")
@click.argument("name")
def forget(session: Session, name: str) -> None:
    """Forget queue NAME, which is gone on purpose.

    Its jobs stay where they are. Without this, jobs on a queue are reported for 7 days after its
    last worker left.
    """
    from ..model import words

    inspector = session.inspector
    registry, split = inspector.registry, inspector.separator
    known = {*registry.served(), *inspector.queues.noted()}
    lists = sorted(one for one in known if one.partition(split)[0] == name)
    owners = [f.owner for f in registry.facts(registry.owners()).values() if {*f.lists} & {*lists}]
    jobs = sum(
        (length if isinstance(length, int) else 0) + probation
        for length, probation in inspector.queues.lengths(lists)
    )
    if owners:
        raise click.ClickException(
            f"Queue {name} has a worker (owner={owners[0]}): nothing was forgotten. Stop the "
            "worker first, or let it consume other queues."
        )
    if not registry.forget_served(lists):
        raise click.ClickException(
            f"No queue named {name} is remembered: no worker left it within 7 days, and no pass "
            "has seen a job on it."
        )

    def say() -> None:
        session.tables.line(f"Forgot queue {name}.")
        if jobs:
            celery = words.command().removesuffix(" superfetch")
            remain, them = ("remains", "it") if jobs == 1 else ("remain", "them")
            session.tables.line(
                f"{words.number(jobs, 'job')} on it {remain} in Redis: delete {them} with "
                f"`{celery} purge -Q {shlex.quote(name)}`, or start a worker that consumes it."
            )

    session.say({"queue": name, "lists": lists, "jobs": jobs}, say)
