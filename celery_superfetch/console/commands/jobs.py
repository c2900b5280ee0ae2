"""``celery superfetch jobs``: lists jobs in flight, scheduled and on probation, shows one with its
history, and revokes many.

A revoke is Celery's: workers keep the task ids in memory. If the command dies, the jobs of the next
messages are where they were, and it can be called again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from ...cli.auditing import recorded, subject_of_filter, subject_of_ids
from ...cli.progress import ProgressLine
from ...cli.session import (
    Session,
    age,
    command,
    complain,
    in_session,
    interruptible,
    quantity,
    warn,
)
from ...inspector import PARKED, WAITING
from ...model.arguments import printable
from ...model.humanize import number
from ..bulk import REVOKE, TERMINATE, Batch, carry_out, first_that_fit, waiting_ids
from ..jobs import SCHEDULED, SORTS, JobsSnapshot, Which
from ..one_job import find_jobs, one_job
from ..overview import overview_of
from ..queue_view import view_of
from .job_shown import print_found, print_job
from .jobs_table import print_jobs

#: Number of jobs from which on the command says that it reads: 10,000 take half a second.
MANY_JOBS = 1000


@click.group(name="jobs", invoke_without_command=True)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", SCHEDULED, "probation", "struck")),
    help="Only jobs in this state; struck: jobs with strikes.",
)
@click.option("--queue", help="Only jobs of this queue; * matches anything.")
@click.option("--task", help="Only jobs of this task; * matches anything.")
@click.option("--node", help="Only jobs of this worker; * matches anything.")
@click.option(
    "--longer",
    type=age,
    help="Only jobs that have run for longer than AGE, such as 90s, 10m or 2h.",
)
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="The longest run first, the oldest claim first, or by the name of the task.",
)
@quantity("--limit", click.IntRange(1), 100, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
@in_session
def jobs(
    session: Session,
    state: str | None,
    sort: str | None,
    limit: int,
    wide: bool,
    **which: Any,
) -> None:
    """List the jobs in flight, scheduled for later, and on probation."""
    which["state"] = PARKED if state == SCHEDULED else state
    snapshot = JobsSnapshot(session.inspector, Which(**which), sort or "")
    if not snapshot.countable and (size := snapshot.size()) > MANY_JOBS:
        complain(f"Reading {size:,} jobs ...")
    document = snapshot.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(document, lambda: print_jobs(session.tables, document, picked, sort, wide))


@command(jobs, "show")
@click.argument("id", metavar="ID")
def jobs_show(session: Session, id: str) -> None:
    """Show one job: its state, history and workflow.

    It also shows how to find the job in the logs.

    ID is its Celery task id, or the digest of its message. It is searched for in flight, scheduled,
    on probation, among the next 500 jobs of each queue, and in the dead set. Exit code 1: no such
    job was found.
    """
    document = one_job(session.inspector, id)
    session.say(document, lambda: print_job(session.tables, document))
    if not document["jobs"]:
        raise click.exceptions.Exit(1)


@command(jobs, "find")
@click.argument("text", metavar="TEXT")
def jobs_find(session: Session, text: str) -> None:
    """Find jobs by a part of their task's name or of their id.

    It searches the jobs in flight and the dead set. Of each queue it searches the next 500 waiting
    jobs, the next 500 scheduled ones, and the next 500 on probation. Of each of these kinds it
    shows about 20 jobs at most. Exit code 1: no job was found.
    """
    document = find_jobs(session.inspector, text)
    session.say(document, lambda: print_found(session.tables, document))
    if not document["jobs"]:
        raise click.exceptions.Exit(1)


@command(jobs, "revoke")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", SCHEDULED, "probation", "struck", WAITING)),
    help="Only jobs in this state; waiting: on the queue named with --queue.",
)
@click.option("--queue", help="Only jobs of this queue; * matches anything.")
@click.option("--task", help="Only jobs of this task; * matches anything.")
@click.option("--node", help="Only jobs of this worker; * matches anything.")
@click.option(
    "--longer",
    type=age,
    help="Only jobs that have run for longer than AGE, such as 90s, 10m or 2h.",
)
@click.option(
    "--terminate", is_flag=True, help="Also end running jobs, if the pool of their worker can."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def jobs_revoke(
    session: Session,
    ids: tuple[str, ...],
    terminate: bool,
    yes: bool,
    **which: Any,
) -> None:
    """Revoke jobs: workers discard them. Running jobs continue, unless --terminate is set.

    Name the jobs by their Celery task ids, or select them with filters, up to 20,000. Workers keep
    the latest 50,000 revoked task ids in memory, for three hours or longer. They forget all ids
    when all workers restart, unless they use --statedb. A job that waits longer than that runs.
    """
    conditions = {name: value for name, value in which.items() if value is not None}
    if ids and conditions:
        raise click.UsageError("name jobs by ID, or select them with filters, not both")
    if not (ids or conditions):
        raise click.UsageError("no jobs selected: name them by ID, or use filters")
    subject = subject_of_ids(ids) if ids else subject_of_filter(which)
    chosen, is_cut = first_that_fit(ids or _selected(session, which))
    action = TERMINATE if terminate else REVOKE
    if chosen and not yes:
        title = number(len(chosen), "job") + ("" if ids else f" ({subject})")
        question = "Revoke and terminate" if terminate else "Revoke"
        click.confirm(printable(f"{question} {title}?"), abort=True, err=True)
    if is_cut:
        warn("there are more jobs: these are the first. Run the command again for the others")
    progress = ProgressLine(len(chosen), silent=bool(ids))
    result = Batch(0, verb=action.verb)
    if chosen:
        with (
            interruptible(lambda: f"{progress.done} of {progress.total} jobs were revoked."),
            recorded(session, action.name, subject, len(chosen)) as entry,
        ):
            result = carry_out(session.app, session.inspector, entry, action, chosen, progress)
    for text in result.texts:
        warn(text)
    text = f"{result.verb} {result.done} of {number(len(chosen), 'job')}."
    document = {"revoked": result.done, "of": len(chosen), "warnings": [*result.texts]}
    session.say(document, lambda: session.tables.line(text))


def _selected(session: Session, which: dict[str, Any]) -> Iterable[str]:
    """Return the task ids of the jobs that meet the conditions."""
    inspector, state = session.inspector, which["state"]
    if state != WAITING:
        which = {**which, "state": PARKED if state == SCHEDULED else state}
        return JobsSnapshot(inspector, Which(**which)).task_ids()
    if which["queue"] is None or which["node"] or which["longer"]:
        raise click.UsageError(
            "waiting jobs are on one queue, and on no worker: use --queue NAME, and neither "
            "--node nor --longer"
        )
    view = view_of(inspector, overview_of(inspector), which["queue"])
    if view is None:
        raise click.ClickException(
            f"Queue {which['queue']!r} is unknown: no setting, worker or job names it. `status "
            "--wide` lists all queues."
        )
    return waiting_ids(inspector, [row["list"] for row in view["lists"]], which["task"])
