"""Jobs in flight that somebody wants to be dead: which are meant, and whom to ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import Celery

from ..inspector import PARKED, PROBATION, Inspector
from ..model.arguments import printable
from ..model.config import KILL_COMMAND
from ..model.facts import Facts
from ..model.words import command
from .jobs import Look, Which

#: State -> why a job cannot be killed that is in it.
NOBODYS = {
    PROBATION: "it is on probation, and no worker has it: it runs as soon as one can run it alone",
    PARKED: "it waits for its time, and no worker has it: revoke it, and it does not run",
}

TIMEOUT = 5.0  # seconds that a worker has for its answer; half of them to begin

SILENT = (
    "its worker {node} did not answer within {seconds:g} s: its loop is busy (a solo worker's with "
    "each job), its remote control is off, or it cannot be reached"
)

Rows = list[dict[str, Any]]


def named(inspector: Inspector, ids: Sequence[str]) -> tuple[Rows, Rows]:
    """The jobs that are meant and can be asked for; the errors of the other names."""
    jobs, errors = Rows(), Rows()
    for id, fit in Look(inspector, Which()).named(list(dict.fromkeys(ids))).items():
        error = ""
        if not fit:
            error = (
                "no such job is in flight: it has ended, waits on its queue, or is in the dead set "
                f"(`{command()} dead list`)"
            )
        elif len(fit) > 1:
            rows = "".join(f"\n  {job['handle']} {title_of(job)} {job['state']}" for job in fit)
            error = f"fits {len(fit)} jobs:{rows}"
        elif fit[0]["state"] in NOBODYS:
            error = NOBODYS[fit[0]["state"]]
        elif fit[0]["verdict"] != "alive":
            error = f"its worker is dead: `{command()} reap` gives it back to its queue"
        elif not fit[0]["node"]:
            error = "who has it is no Celery worker: stop that, and it goes back to its queue"
        if error:
            errors.append({"id": id, "error": error})
        elif fit[0] not in jobs:
            jobs.append(fit[0])
    return jobs, errors


def kill(app: Celery, inspector: Inspector, jobs: Iterable[Mapping[str, Any]]) -> tuple[Rows, Rows]:
    """Those that are in the dead set by now, and the errors of the others."""
    workers: dict[str, dict[str, Mapping[str, Any]]] = {}
    for job in jobs:
        workers.setdefault(job["owner"], {})[job["claim_id"]] = job
    done, errors = Rows(), Rows()
    registry = inspector.registry
    owners = registry.facts({*registry.owners(), *workers})
    called = Counter(facts.node for facts in owners.values())
    for owner, claims in workers.items():
        facts, now = owners[owner], inspector.database.server_time()
        for name, result in _ask(app, facts, called[facts.node], now, [*claims]).items():
            job = claims[name]
            if "error" in result:
                errors.append({"id": job["id"], "error": result["error"]})
            else:
                parts = {part: job[part] for part in ("id", "task", "queue", "node")}
                done.append({**parts, **result})
    return done, errors


def _ask(
    app: Celery, facts: Facts, called: int, now: int, names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Have a worker kill some of its jobs, by their claim ids. ``called``: how many workers have
    its name; ``now``: the server's clock (ms). Returns claim id -> ``dead_id``, or ``error``."""
    node = facts.node
    replies = app.control.broadcast(
        KILL_COMMAND,
        # A worker that is busy hears of it later, when nobody waits for its answer any more.
        arguments={"owner": facts.owner, "jobs": [*names], "until": now + TIMEOUT * 500},
        destination=[node],
        reply=True,
        timeout=TIMEOUT,
        limit=called,  # each of them answers, and one alone has the jobs
    )
    answers = [reply[node] for reply in replies or () if node in reply]
    for answer in answers:
        if "jobs" in answer:
            return dict(answer["jobs"])
    trouble = answers[0].get("error") if answers else SILENT.format(node=node, seconds=TIMEOUT)
    return {name: {"error": printable(trouble)} for name in names}


def title_of(job: Mapping[str, Any]) -> str:
    return printable(f"{job['task']}[{job['id']}]")
