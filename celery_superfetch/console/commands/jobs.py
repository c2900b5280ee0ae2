"""``celery superfetch jobs ...``: what is in flight, is parked, and waits on probation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ...cli.session import Session, command, complain, in_session, quantity

#: Jobs to look through that take long enough to say so: at 10,000 it is half a second.
MANY = 1000


@click.group(name="jobs", invoke_without_command=True)
@click.option(
    "--state",
    type=click.Choice(("running", "reserved", "parked", "probation", "struck")),
    help="Only jobs in this state; struck: jobs with strikes.",
)
@click.option("--queue", help="Only jobs from this queue; * stands for anything.")
@click.option("--task", help="Only jobs of this task; * stands for anything.")
@click.option("--node", help="Only jobs of this worker; * stands for anything.")
@quantity("--limit", click.IntRange(1), 100, "N", "Show this many jobs.")
@click.option("--wide", is_flag=True, help="Show all columns, each job on one line.")
@in_session
def jobs(session: Session, limit: int, wide: bool, **which: Any) -> None:
    """List jobs in flight, parked ones (they wait for their time), and those on probation.

    Without a command it only reads. ID is a job's Celery task id or its digest, or the start of
    either.
    """
    from ..jobs import Look, Which
    from .jobs_table import print_jobs

    look = Look(session.inspector, Which(**which))
    if not look.which.countable and (size := look.size()) > MANY:
        complain(f"Looking through {size:,} jobs ...")
    found = look.first(limit)
    picked = any(value is not None for value in which.values())
    session.say(found, lambda: print_jobs(session.tables, found, picked, wide))


@command(jobs, "kill")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def jobs_kill(session: Session, ids: tuple[str, ...], yes: bool) -> None:
    """Move jobs in flight to the dead set, and tell their callers. What runs is ended."""
    found, errors = _named(session, ids)
    if found and not yes:
        number = f"{len(found)} jobs" if len(found) > 1 else _title(found[0])
        run = ", and end what runs" if any(job["state"] == "running" for job in found) else ""
        click.confirm(f"Move {number} to the dead set{run}?", abort=True, err=True)
    done = _kill(session, found, errors)
    lines = [f"Killed, in the dead set as {job['dead_id']}: {_title(job)}" for job in done]
    session.end({"killed": done}, errors, lines)


def _named(
    session: Session, ids: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The jobs that are meant and can be asked for; the errors of the other names."""
    from ...inspector import PARKED, PROBATION
    from ..jobs import Look, Which

    look = Look(session.inspector, Which())
    jobs: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for id, fit in look.named(list(dict.fromkeys(ids))).items():
        error = ""
        if not fit:
            error = (
                "no such job is in flight: it has ended, waits on its queue, or is in the dead set "
                "(`celery superfetch dead list`)"
            )
        elif len(fit) > 1:
            rows = "".join(f"\n  {job['digest']} {_title(job)} {job['state']}" for job in fit)
            error = f"fits {len(fit)} jobs:{rows}"
        elif fit[0]["state"] == PROBATION:
            error = (
                "it is on probation, and no worker has it: it runs as soon as one can run it alone"
            )
        elif fit[0]["state"] == PARKED:
            error = "it waits for its time, and no worker has it: revoke it, and it does not run"
        elif fit[0]["verdict"] != "alive":
            error = "its worker is dead: `celery superfetch reap` gives it back to its queue"
        elif not fit[0]["node"]:
            error = "who has it is no Celery worker: stop that, and it goes back to its queue"
        if error:
            errors.append({"id": id, "error": error})
        elif fit[0] not in jobs:
            jobs.append(fit[0])
    return jobs, errors


def _kill(
    session: Session, jobs: Sequence[dict[str, Any]], errors: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Those that are in the dead set by now; what was left undone goes to ``errors``."""
    from ...app.kill import kill

    workers: dict[str, dict[str, dict[str, Any]]] = {}
    for job in jobs:
        workers.setdefault(job["owner"], {})[job["claim_id"]] = job
    done = []
    registry = session.reaper.registry
    known = registry.facts({*registry.owners(), *workers})
    called = Counter(facts.node for facts in known.values())
    for owner, its in workers.items():
        facts, now = known[owner], session.reaper.database.server_time()
        for name, result in kill(session.app, facts, called[facts.node], now, [*its]).items():
            job = its[name]
            if "error" in result:
                errors.append({"id": job["id"], "error": result["error"]})
            else:
                told = {part: job[part] for part in ("id", "task", "queue", "node")}
                done.append({**told, **result})
    return done


def _title(job: Mapping[str, Any]) -> str:
    return f"{job['task']}[{job['id']}]"
