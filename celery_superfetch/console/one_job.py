"""Finds one job by its task id or digest, with its history, its workflow and hints for the logs.

`superfetch jobs show` and the page of a job call ``one_job``. It only reads: a death leaves nothing
behind. What Redis does not record is not made up: an event without a time has none recorded.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..inspector import PARKED, PROBATION, RESERVED, RUNNING, WAITING, Inspector, JobPlace, Sought
from ..model.arguments import BODY_MAX_BYTES, LISTED_MAX_CHARS, arguments, cut
from ..model.dead_job import DeadJob, utc
from ..model.foreign import one_line
from ..model.job import (
    UNREADABLE,
    Counters,
    NotRead,
    claim_number,
    claimed_at,
    digest,
    parse,
    queue_list_of,
    read_body,
)
from .jobs import retries_of
from .overview import lists_with_jobs, owner_rows, run_seconds

DEAD = "dead"  # the state of a job in the dead set

#: Characters of an id that is searched for.
ID_MAX_CHARS = 200

#: Names of next steps that are listed of each kind.
STEPS_SHOWN = 20

#: Headers of a message that name the job's workflow.
FLOW_HEADERS = ("root_id", "parent_id", "group", "group_index")

#: States of a job, those first in which most is known of it.
ORDER = (RUNNING, RESERVED, PROBATION, PARKED, WAITING, DEAD)


def one_job(inspector: Inspector, id: str) -> dict[str, Any]:
    """Return all jobs with this id (a retry has the id of the first try), what was examined to find
    them, and the server's time. ``jobs`` is empty if none was found."""
    found = _Finder(inspector, Sought(id[:ID_MAX_CHARS]))
    jobs = sorted(found.jobs(), key=lambda job: ORDER.index(job["state"]))
    return {
        "id": id,
        "server_time": utc(found.now / 1000),
        "jobs": jobs,
        "examined": found.examined,
    }


class _Finder:
    """One search, and what it needs to show a job."""

    def __init__(self, inspector: Inspector, sought: Sought) -> None:
        self.inspector, self.sought = inspector, sought
        self.now = inspector.database.server_time()
        judged = inspector.judged()
        self.started = {record.owner: dict(record.started_jobs) for record, _, _ in judged}
        rows = owner_rows(inspector, judged, self.now)
        self.held = {row["owner"]: held for row, held in rows}
        self.owners = {row["owner"]: row for row, _ in rows}
        lists = {*inspector.lists, *(name for row, _ in rows for name in row["queues"])}
        # A queue whose workers are gone has jobs, too.
        self.queues = sorted(lists | lists_with_jobs(inspector) | {*inspector.registry.served()})
        #: The places that were examined, each with the number of its jobs, and of those examined.
        self.examined: list[dict[str, Any]] = []

    def jobs(self) -> Iterator[dict[str, Any]]:
        search, sought = self.inspector.search, self.sought
        claims = self.inspector.in_flight_jobs.claims([*self.owners])
        result = search.in_claims(sought, claims)
        self._add_examined("in flight", result.examined, len(claims))
        found = [*result.jobs]
        landing = [
            JobPlace(RESERVED, owner, name)
            for owner, held in self.held.items()
            for name in held.lists
        ]
        found += search.in_lists(sought, landing).jobs

        parked = [JobPlace(PARKED, queue_list=name) for name in self.inspector.parked.lists()]
        size = sum(self.inspector.parked.sizes([place.queue_list for place in parked]).values())
        result = search.in_parked(sought, parked)
        self._add_examined("scheduled", min(size, result.examined), size)
        found += result.jobs or (search.in_lists(sought, parked).jobs if sought.digest else ())

        suspects = [
            JobPlace(PROBATION, queue_list=name) for name in self.inspector.suspects.lists()
        ]
        waiting = [JobPlace(WAITING, queue_list=name) for name in self.queues]
        for label, places, column in (("on probation", suspects, 1), ("waiting", waiting, 0)):
            lengths = self.inspector.queues.lengths([place.queue_list for place in places])
            sizes = [pair[column] for pair in lengths]
            result = search.in_lists(sought, places)
            self._add_examined(label, result.examined, sum(n for n in sizes if isinstance(n, int)))
            found += result.jobs
        dead, examined = search.in_dead_set(sought)
        self._add_examined("in the dead set", examined, len(self.inspector.dead_set))

        counters = self.inspector.strikes.counters([digest(job.payload) for job in found])
        for job, history in zip(found, counters, strict=True):
            yield self._alive(*job, history)
        yield from map(self._dead, dead)

    def _add_examined(self, label: str, examined: int, size: int) -> None:
        self.examined.append({"place": label, "examined": min(examined, size), "jobs": size})

    def _alive(
        self, place: JobPlace, payload: bytes, claim: str, runs: bool, counters: Counters
    ) -> dict[str, Any]:
        owner = self.owners.get(place.owner, {})
        started = self.started.get(place.owner, {}).get(claim_number(claim)) if runs else None
        queue_list = place.queue_list or queue_list_of(claim)
        state = RUNNING if runs else place.state or RESERVED
        job = {
            **_of_message(payload),
            "state": state,
            **{name: owner.get(name) for name in ("node", "host", "pid", "verdict")},
            "owner": place.owner or None,
            "queue": queue_list.partition(self.inspector.separator)[0],
            "list": queue_list,
            "claimed": utc(claimed_at(claim) if claim else None),
            "started": utc(started),
            "run_time": None if started is None else run_seconds(started, self.now),
            **{name: getattr(counters, name) for name in COUNTS},
        }
        events = [*_earlier(counters.first_claimed_at, counters.history), *_now(job)]
        return self._with_logs({**job, "events": events})

    def _dead(self, dead: DeadJob) -> dict[str, Any]:
        job = {
            **_of_message(dead.payload),
            "state": DEAD,
            "dead_id": dead.id,
            "reason": dead.reason,
            **dict.fromkeys(("host", "pid", "verdict", "claimed", "started", "run_time")),
            "node": dead.node or None,
            "owner": dead.owner or None,
            "queue": dead.queue_list.partition(self.inspector.separator)[0],
            "list": dead.queue_list,
            **{name: getattr(dead, name, 0) for name in COUNTS},
        }
        history = [{**event, "at": event.get("at")} for event in dead.history]
        died = _event(dead.died, "moved to the dead set", dead.owner, dead.reason)
        events = [*_earlier(dead.first_claimed, history), died]
        return self._with_logs({**job, "events": events})

    def _with_logs(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return a job with the commands that find it in the logs of its workers."""
        owners: dict[str, str | None] = {}
        for event in job["events"]:
            if event["owner"]:
                owners.setdefault(event["owner"], event["at"])
        logs = []
        for owner, at in owners.items():
            row = self.owners.get(owner, {})
            node = row.get("node") or (job["node"] if owner == job["owner"] else None)
            logs.append({"owner": owner, "host": _host(owner), "node": node, "from": at})
        # Logs have the id of the task; of a message without one they have the digest.
        return {**job, "logs": logs, "grep": f"grep -F -- {shlex.quote(one_line(job['id']))} LOG"}


#: Counters of a job's history that are shown.
COUNTS = ("strikes", "recoveries", "stops", "requeues", "solo_runs")


def _of_message(payload: bytes) -> dict[str, Any]:
    """Return what a message says of its job."""
    envelope, name = parse(payload), digest(payload)
    headers = (envelope.message or {}).get("headers") or {}
    args, kwargs = arguments(payload)
    limits = headers.get("timelimit")
    return {
        "id": envelope.task_id or name,
        "task_id": envelope.task_id,
        "digest": name,
        "task": envelope.task,
        "args": args,
        "kwargs": kwargs,
        "bytes": len(payload),
        "retries": retries_of(envelope),
        "due": utc(envelope.eta or None),
        "expires": _text(headers.get("expires")),
        # Soft and hard.
        "time_limits": _text(limits) if isinstance(limits, list) and any(limits) else None,
        "sent_by": _text(headers.get("origin")),
        "workflow": {
            **{name: _text(headers.get(name)) for name in FLOW_HEADERS},
            **_next_steps(envelope.message),
        },
    }


def _next_steps(message: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the messages that a job publishes because it ends, by kind: their number, and the
    names of the first of their tasks. ``unread`` says why they are not known."""
    steps: dict[str, Any] = {"unread": None}
    embed: Any = {}
    try:
        body = read_body(dict(message), BODY_MAX_BYTES) if message else []
        # In a body of protocol 1 they are among its other fields.
        embed = body if isinstance(body, dict) else body[2]
    except NotRead as exc:
        steps["unread"] = str(exc)
    except UNREADABLE:
        steps["unread"] = "the body cannot be decoded"
    fields = embed if isinstance(embed, Mapping) else {}
    chain = fields.get("chain")
    kinds = {
        "next": chain[::-1]
        if isinstance(chain, list)
        else None,  # Celery's chain begins at its end
        "callbacks": fields.get("callbacks"),
        "errbacks": fields.get("errbacks"),
        "chord": [fields.get("chord")],
    }
    for kind, signatures in kinds.items():
        found = signatures if isinstance(signatures, list) else []
        found = [step for step in found if isinstance(step, Mapping)]
        names = [cut(str(step.get("task")), LISTED_MAX_CHARS) for step in found[:STEPS_SHOWN]]
        steps[kind] = {"count": len(found), "tasks": names}
    return steps


def _earlier(first_claimed: int, history: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a job before its present claim."""
    if first_claimed:  # its owner is not recorded
        yield _event(first_claimed, "claimed for the first time")
    for entry in history:
        strike = f", strike ({entry['strike']})" if entry.get("strike") else ""
        kind = "stopped" if entry.get("stop") else "run lost"
        owner, reason = str(entry.get("owner") or ""), str(entry.get("reason") or "")
        yield _event(entry.get("at"), f"{kind}{strike}", owner, reason)


def _now(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a job's present claim."""
    owner = str(job["owner"] or "")
    if job["requeues"]:
        times = "once" if job["requeues"] == 1 else f"{job['requeues']} times"
        yield _event(None, f"requeued {times} without a strike")
    if owner:
        yield {**_event(None, "claimed", owner), "at": job["claimed"]}
    if job["state"] == RUNNING:
        yield {**_event(None, "started", owner), "at": job["started"]}


def _event(at: Any, event: str, owner: str = "", reason: str = "") -> dict[str, Any]:
    """Return an event: its time (ISO 8601; None: it is not recorded), kind, owner and reason."""
    time = utc(at) if isinstance(at, (int, float)) and at else None
    return {"at": time, "event": event, "owner": owner, "host": _host(owner), "reason": reason}


def _host(owner: str) -> str:
    return owner.partition("|")[0]


def _text(value: Any) -> str | None:
    """Return a header as one short line; None if it has none. A producer may have sent anything."""
    return None if value is None or value == "" else cut(str(value), LISTED_MAX_CHARS)
