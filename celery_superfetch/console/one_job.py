"""Finds one job by its task id or digest, with its history, its workflow and hints for the logs;
and the jobs of all states by a part of an id, or of their task's name.

`superfetch jobs show` and the page of a job call ``one_job``, `superfetch jobs find` and the page's
search call ``find_jobs``. It only reads, so a death leaves nothing behind. What Redis does not
record is not made up: an event without a time has none recorded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..errors import BadFilter
from ..inspector import (
    PARKED,
    PROBATION,
    RESERVED,
    RUNNING,
    WAITING,
    DeadSearch,
    InFlightCounts,
    Inspector,
    JobPlace,
    Search,
    SeenClaim,
    SeenJob,
    Sought,
)
from ..model.arguments import BODY_MAX_BYTES, LISTED_MAX_CHARS, arguments, cut
from ..model.dead_job import DeadJob, utc
from ..model.foreign import one_line
from ..model.humanize import command
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
from ..model.verdict import DECLARED_DEAD_BEFORE, Reason
from .findings_of_workers import MAY_RUN
from .job_texts import DEAD
from .jobs import retries_of
from .overview import lists_with_jobs, owner_rows, run_seconds

#: Characters of the text of a search by a part. No task has so long a name.
PART_MAX_CHARS = 300

#: A whole id, as Celery makes it, or a digest.
WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{40}")

#: Names of next steps that are listed of each kind.
STEPS_SHOWN = 20

#: Headers of a message that name the job's workflow.
FLOW_HEADERS = ("root_id", "parent_id", "group", "group_index")

#: Reasons of a lost run for which its whole worker was declared dead. For others it lived: its pool
#: process died, say.
DEATHS = {reason.value for reason in Reason if reason.dead} | {DECLARED_DEAD_BEFORE}

#: States of a job, those first in which most is known of it.
ORDER = (RUNNING, RESERVED, PROBATION, PARKED, WAITING, DEAD)


def one_job(inspector: Inspector, id: str) -> dict[str, Any]:
    """Return the jobs with this id (a retry has the id of the first try) that a limited search
    finds, what was examined to find them, and the server's time. ``jobs`` is empty if none was
    found. ``more``: not all jobs were examined, so that others may match."""
    return _document(id, _Finder(inspector, Sought(id)))


def find_jobs(inspector: Inspector, text: str) -> dict[str, Any]:
    """Return the jobs in all states whose task's name or task id contains a text, without regard to
    case, each with its state; about ``FOUND_MOST`` of each kind of place. ``more``: not all jobs
    were examined, so that others may match. A whole task id, or a digest, finds what ``one_job``
    finds.

    Raises:
        BadFilter: the text is longer than ``PART_MAX_CHARS``: no name would be found by it.
    """
    text = text.strip()
    # An asterisk stands for anything in the filters of the other commands and views. Asterisks
    # alone are searched for as an id.
    part = text.strip("*")
    if WHOLE_ID.fullmatch(text) or not part:
        return one_job(inspector, text)
    if len(part) > PART_MAX_CHARS:
        raise BadFilter(
            f"the text of a search must have {PART_MAX_CHARS} characters at most, got {len(part)}: "
            f"use a part of it. `{command()} jobs show` accepts a whole id of any length"
        )
    return _document(text, _Finder(inspector, Sought(part, is_part=True)))


def _document(text: str, finder: _Finder) -> dict[str, Any]:
    """Search, and return the document of the jobs that were found."""
    jobs = sorted(finder.jobs(), key=lambda job: ORDER.index(job["state"]))
    return {
        "id": text,
        "server_time": utc(finder.now / 1000),
        "jobs": jobs,
        "examined": finder.examined,
        "more": finder.is_cut,
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
        #: True if the search of a kind of place ended before its last job.
        self.is_cut = False

    def jobs(self) -> Iterator[dict[str, Any]]:
        """Search all places, and yield the jobs that were found."""
        search, sought = self.inspector.search, self.sought
        in_flight_jobs = self.inspector.in_flight_jobs
        claims = in_flight_jobs.claims([*self.owners])
        landing = _landing_lists(self.held)
        landed_size = in_flight_jobs.landed_count(landing)
        claimed, landed = search.in_claims(sought, claims), search.in_lists(sought, landing)
        in_flight = Search(
            [*claimed.jobs, *landed.jobs],
            claimed.examined + landed.examined,
            claimed.is_cut or landed.is_cut,
        )
        self._add_examined("in flight", in_flight, len(claims) + landed_size)
        results = [in_flight]

        parked = self.inspector.parked.sizes(self.inspector.parked.lists())
        results.append(search.in_parked(sought, parked))
        self._add_examined("scheduled", results[-1], sum(parked.values()))

        suspects = [
            JobPlace(PROBATION, queue_list=name) for name in self.inspector.suspects.lists()
        ]
        waiting = [JobPlace(WAITING, queue_list=name) for name in self.queues]
        for label, places, column in (("on probation", suspects, 1), ("waiting", waiting, 0)):
            lengths = self.inspector.queues.lengths([place.queue_list for place in places])
            sizes = [pair[column] for pair in lengths]
            results.append(search.in_lists(sought, places))
            self._add_examined(label, results[-1], sum(n for n in sizes if isinstance(n, int)))
        dead = search.in_dead_set(sought)
        self._add_examined("in the dead set", dead, len(self.inspector.dead_set))
        found = self._without_moved(results, dead)
        if not (found or dead.jobs):
            found = [*self._claimed_meanwhile(claims)]

        counters = self.inspector.strikes.counters([digest(job.payload) for job in found])
        for job, history in zip(found, counters, strict=True):
            yield self._alive(*job, history)
        yield from map(self._dead, dead.jobs)

    def _without_moved(self, results: Sequence[Search], dead: DeadSearch) -> list[SeenJob]:
        """Return the jobs of some searches, in their order, each once. If a job moved during the
        search (it was requeued, say), one search found it at its old place, and a later one at its
        new place, which counts."""
        found: list[SeenJob] = []
        found_later = {job.payload for job in dead.jobs}
        for result in reversed(results):
            jobs = [
                job
                for job in result.jobs
                if job.payload not in found_later or self._is_still_there(job)
            ]
            found = [*jobs, *found]
            found_later |= {job.payload for job in jobs}
        return found

    def _is_still_there(self, job: SeenJob) -> bool:
        """Return whether a job is where it was found. A second message of the same bytes, which a
        person has copied, may be elsewhere: it is another job."""
        search, same = self.inspector.search, Sought(digest(job.payload))
        if job.claim_id:  # no other claim has this id
            claim = SeenClaim(job.place.owner, job.claim_id, job.runs)
            return bool(search.in_claims(same, [claim]).jobs)
        if job.place.state == PARKED and not self.sought.is_part:
            # An id is compared with all parked jobs, also beyond those that ``in_lists`` examines.
            sizes = self.inspector.parked.sizes([job.place.queue_list])
            return job in search.in_parked(self.sought, sizes).jobs
        return bool(search.in_lists(same, [job.place]).jobs)

    def _claimed_meanwhile(self, searched: Sequence[SeenClaim]) -> Iterator[SeenJob]:
        """Search the jobs that were claimed during the search. Such a job left its queue before the
        queue was searched, and reached the private list of its owner after the list was."""
        in_flight_jobs = self.inspector.in_flight_jobs
        owners = [*{**self.owners, **self.inspector.registry.owners()}]  # some have come meanwhile
        # The landing lists come first: a job that has landed is claimed next.
        landing = _landing_lists(in_flight_jobs.counts(owners))
        yield from self.inspector.search.in_lists(self.sought, landing).jobs
        known = {(claim.owner, claim.claim_id) for claim in searched}
        new = [
            claim
            for claim in in_flight_jobs.claims(owners)
            if (claim.owner, claim.claim_id) not in known
        ]
        yield from self.inspector.search.in_claims(self.sought, new).jobs

    def _add_examined(self, label: str, result: Search | DeadSearch, size: int) -> None:
        self.is_cut = self.is_cut or result.is_cut
        examined = min(result.examined, size)
        self.examined.append({"place": label, "examined": examined, "jobs": size})

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
            "queue": self.inspector.database.queue_of(queue_list),
            "list": queue_list,
            "claimed": utc(claimed_at(claim) if claim else None),
            "started": utc(started),
            "run_time": None if started is None else run_seconds(started, self.now),
            **{name: getattr(counters, name) for name in COUNTS},
        }
        events = [*self._earlier(counters.first_claimed_at, counters.history), *_now(job)]
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
            "queue": self.inspector.database.queue_of(dead.queue_list),
            "list": dead.queue_list,
            **{name: getattr(dead, name, 0) for name in COUNTS},
        }
        history = [{**event, "at": event.get("at")} for event in dead.history]
        died = _event(dead.died, "moved to the dead set", dead.owner, dead.reason, is_end=True)
        events = [*self._earlier(dead.first_claimed, history), died]
        return self._with_logs({**job, "events": events})

    def _earlier(
        self, first_claimed: int, history: Sequence[Mapping[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a job before its present claim."""
        if first_claimed:  # its owner is not recorded
            yield _event(first_claimed, "claimed for the first time")
        for entry in history:
            owner, reason = str(entry.get("owner") or ""), str(entry.get("reason") or "")
            worker = f"worker {self._node_of(owner) or owner}" if owner else "its worker"
            event = f"run lost on {worker}"
            if entry.get("stop"):
                event = f"cut short: {worker} was stopping"
            elif reason in DEATHS:
                event = f"{worker} {'was declared dead' if reason in MAY_RUN else 'died'}"
            strike = f", strike ({entry['strike']})" if entry.get("strike") else ""
            yield _event(entry.get("at"), event + strike, owner, reason, is_end=True)

    def _node_of(self, owner: str) -> str | None:
        """Return the node name of an owner that is registered, or died within a week."""
        return self.owners.get(owner, {}).get("node") or self._dead_nodes.get(owner) or None

    @cached_property
    def _dead_nodes(self) -> dict[str, str]:
        """Owner -> node name, of those that died within a week."""
        return {death["owner"]: death["node"] for death in self.inspector.stats.deaths()}

    def _with_logs(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return a job with the commands that find it in the logs of its workers."""
        ranges: dict[str, dict[str, str | None]] = {}
        before = None
        for event in job["events"]:
            owner, at, is_end = event["owner"], event["at"], event["is_end"]
            if owner:
                # It had the job before the event that ended its claim, and after the event before.
                found = ranges.setdefault(owner, {"from": before if is_end else at, "to": None})
                found["to"] = at if is_end else None
            before = at or before
        logs = []
        for owner, times in ranges.items():
            node = job["node"] if owner == job["owner"] else None
            node = node or self._node_of(owner)
            logs.append({"owner": owner, "host": _host(owner), "node": node, **times})
        # Logs have the id of the task; of a message without one they have the digest.
        return {**job, "logs": logs, "grep": f"grep -F -- {shlex.quote(one_line(job['id']))} LOG"}


def _landing_lists(held: Mapping[str, InFlightCounts]) -> list[JobPlace]:
    """Return the landing lists of owners, by the numbers of their jobs in flight."""
    return [
        JobPlace(RESERVED, owner, name) for owner, counts in held.items() for name in counts.lists
    ]


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


def _event(
    at: Any, event: str, owner: str = "", reason: str = "", *, is_end: bool = False
) -> dict[str, Any]:
    """Return an event: its time (ISO 8601; None: it is not recorded), kind, owner and reason.
    ``is_end``: it ended the claim of that owner."""
    time = utc(at) if isinstance(at, (int, float)) and at else None
    words = {"event": event, "owner": owner, "host": _host(owner), "reason": reason}
    return {"at": time, **words, "is_end": is_end}


def _host(owner: str) -> str:
    return owner.partition("|")[0]


def _text(value: Any) -> str | None:
    """Return a header as one short line; None if it has none. A producer may have sent anything."""
    return None if value is None or value == "" else cut(str(value), LISTED_MAX_CHARS)
