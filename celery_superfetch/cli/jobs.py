"""``celery superfetch jobs ...``: what is in flight, and what waits on probation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from .session import Session, command, complain, in_session, quantity, superfetch

#: Jobs to look through that take long enough to say so: at 10,000 it is half a second.
MANY = 1000


@superfetch.group(name="jobs", invoke_without_command=True)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", "eta", "probation", "struck")),
    help="Only jobs in this state; struck: jobs with strikes.",
)
@click.option("--queue", help="Only jobs from this queue; * stands for anything.")
@click.option("--task", help="Only jobs of this task; * stands for anything.")
@click.option("--node", help="Only jobs of this worker; * stands for anything.")
@quantity("--limit", click.IntRange(1), 100, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
@in_session
def jobs(session: Session, limit: int, wide: bool, **which: Any) -> None:
    """List jobs in flight by their workers, and jobs on probation. Without a command it only reads.

    ID is a job's Celery task id or its digest, or the start of either.
    """
    from ..operate.jobs import Look, Which
    from .jobs_tables import print_jobs

    look = Look(session.reaper, Which(**which), session.dead_set.separator)
    if not look.which.countable and (size := look.size()) > MANY:
        complain(f"Looking through {size:,} jobs ...")
    found = look.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(found, lambda: print_jobs(session.tables, found, picked, wide))


@command(jobs, "release")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def jobs_release(session: Session, ids: tuple[str, ...]) -> None:
    """Give reserved jobs back to their queues, if their workers have not begun them."""
    found, errors = _named(session, ids)
    done = _order(session, found, errors, "release")
    lines = [f"Released to the front of {job['queue']}: {_title(job)}" for job in done]
    session.end({"released": done}, errors, lines)


@command(jobs, "kill")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--terminate", is_flag=True, help="Also kill jobs that run: their runs are ended.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def jobs_kill(session: Session, ids: tuple[str, ...], terminate: bool, yes: bool) -> None:
    """Move jobs in flight to the dead set, and tell their callers."""
    found, errors = _named(session, ids)
    if found and not yes:
        number = f"{len(found)} jobs" if len(found) > 1 else _title(found[0])
        click.confirm(f"Move {number} to the dead set?", abort=True, err=True)
    done = _order(session, found, errors, "kill", terminate=terminate)
    lines = [f"Killed, in the dead set as {job['dead_id']}: {_title(job)}" for job in done]
    session.end({"killed": done}, errors, lines)


def _named(
    session: Session, ids: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The jobs that are meant and can be asked for; the errors of the other names."""
    from ..operate.jobs import Look, Which
    from ..store.holdings import PROBATION

    look = Look(session.reaper, Which(), session.dead_set.separator)
    jobs: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for id, fit in look.named(list(dict.fromkeys(ids))).items():
        error = ""
        if not fit:
            error = "no such job is in flight: it has ended, or waits on its queue"
        elif len(fit) > 1:
            rows = "".join(f"\n  {job['digest']} {_title(job)} {job['state']}" for job in fit)
            error = f"fits {len(fit)} jobs:{rows}"
        elif fit[0]["state"] == PROBATION:
            error = (
                "it is on probation, and no worker has it: it runs as soon as one can run it alone"
            )
        elif fit[0]["verdict"] != "alive":
            error = "its worker is dead: `celery superfetch reap` gives it back to its queue"
        elif not fit[0]["node"]:
            error = "its owner is no Celery worker: stop that, and it goes back to its queue"
        if error:
            errors.append({"id": id, "error": error})
        elif fit[0] not in jobs:
            jobs.append(fit[0])
    return jobs, errors


def _order(
    session: Session,
    jobs: Sequence[dict[str, Any]],
    errors: list[dict[str, Any]],
    what: str,
    **how: Any,
) -> list[dict[str, Any]]:
    """Ask the worker of each job; those with which it was done, and the others to ``errors``."""
    from ..app.orders import give

    workers: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        workers.setdefault(job["owner"], []).append(job)
    done = []
    registry = session.reaper.registry
    known = registry.facts({*registry.owners(), *workers})
    called = Counter(facts.node for facts in known.values())
    for owner, its in workers.items():
        facts = known[owner]
        worker = {name: getattr(facts, name) for name in ("owner", "node", "version")}
        worker["called"] = called[facts.node]
        names = [job["digest"] for job in its]
        answers = give(session.app, session.reaper.database, worker, what, names, **how)
        for job in its:
            answer = answers.get(job["digest"], {"error": "its worker did not say"})
            if "ok" in answer:
                told = {name: job[name] for name in ("id", "task", "queue", "node")}
                done.append({**told, **answer["ok"]})
            else:
                errors.append({"id": job["id"], "error": answer["error"]})
    return done


def _title(job: Mapping[str, Any]) -> str:
    return f"{job['task']}[{job['id']}]"
