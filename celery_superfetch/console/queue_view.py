"""One queue as a plain document: what waits, its workers, its pause, its priorities.

`superfetch queue show` and the page call ``view_of``, each with an overview. It only reads, the
first jobs alone, so that a queue of a million jobs takes no longer: a death leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..inspector import WAITING, Inspector, JobPlace
from ..model.arguments import arguments
from ..model.dead_job import utc
from ..model.humanize import span
from ..model.job import digest, parse
from .jobs import retries_of
from .overview import CANCELLED, by_queue

#: Waiting jobs, and workers, that the document has.
NEXT_JOBS_SHOWN, QUEUE_WORKERS_SHOWN = 50, 100

#: State of a worker that serves no queue -> the reason.
IDLE_REASONS = {
    "stopping": "it is stopping: it waits for its running jobs, and claims no more",
    "silent": "it has sent no heartbeat lately",
    "hung": "its event loop has stopped",
    CANCELLED: "its consumer of this queue was cancelled (cancel_consumer)",
}

#: Fields of a list's row that the document has.
LIST_FIELDS = ("priority", "list", "length", "probation", "parked", "next_due", "oldest")


def view_of(inspector: Inspector, overview: Mapping[str, Any], queue: str) -> dict[str, Any] | None:
    """Return the document of a queue; None if the overview has no queue of that name.

    Arguments:
        overview: of the same database, a moment old at most.
    """
    rows = [row for row in overview["queues"] if row["queue"] == queue]
    if not rows:
        return None
    [row] = by_queue(rows)
    rows.sort(key=lambda row: row["priority"])  # the most urgent first, as workers claim
    names = [row["list"] for row in rows]
    workers = [*_workers(overview["owners"], {*names})]
    jobs = _first_jobs(inspector, rows)
    return {
        **row,
        "command": overview["command"],
        "server_time": overview["server_time"],
        "lists": [{name: row[name] for name in LIST_FIELDS} for row in rows],
        # Those that serve it first, then those that only have it in their records.
        "workers": workers[:QUEUE_WORKERS_SHOWN],
        "workers_left_out": max(0, len(workers) - QUEUE_WORKERS_SHOWN),
        # The next to be claimed first.
        "jobs": jobs,
        "jobs_left_out": max(0, row["waiting"] - len(jobs)),
    }


def _workers(owners: Iterable[Mapping[str, Any]], names: set[str]) -> Iterable[dict[str, Any]]:
    """Return the workers with one of these queue lists: those that serve it first."""
    rows = []
    for owner in owners:
        lists = names.intersection(owner["queues"])
        if not lists:
            continue
        state = CANCELLED if lists <= {*owner["unconsumed"]} else owner["state"]
        reason = IDLE_REASONS.get(state, "")
        if state == "silent":
            reason = f"it has sent no heartbeat for {span(owner['heartbeat_age'])}"
        if owner["verdict"] == "dead":
            reason = f"it is dead ({owner['reason']})"
        fields = ("node", "owner", "host", "pid", "running", "slots", "reserved")
        rows.append(
            {
                **{name: owner[name] for name in fields},
                "state": "dead" if owner["verdict"] == "dead" and state != "hung" else state,
                "serves": not reason,
                "reason": reason or None,
            }
        )
    return sorted(rows, key=lambda row: (not row["serves"], row["node"] or "", row["owner"]))


def _first_jobs(inspector: Inspector, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Read the next jobs to be claimed; ``rows``: the lists of the queue, in that order."""
    ages = {row["list"]: row["oldest"] for row in rows if row["length"]}
    priorities = {row["list"]: row["priority"] for row in rows}
    places = [JobPlace(WAITING, queue_list=name) for name in ages]
    jobs: list[dict[str, Any]] = []
    for batch in inspector.in_flight_jobs.jobs(places, NEXT_JOBS_SHOWN):
        for place, payload, *_ in batch[: NEXT_JOBS_SHOWN - len(jobs)]:
            envelope, raw_digest, name = parse(payload), digest(payload), place.queue_list
            args, kwargs = arguments(payload)
            jobs.append(
                {
                    "id": envelope.task_id or raw_digest,
                    "digest": raw_digest,
                    "task": envelope.task,
                    "priority": priorities[name],
                    "retries": retries_of(envelope),
                    "due": utc(envelope.eta or None),
                    "args": args,
                    "kwargs": kwargs,
                    # Seconds for which it was seen at the front of its list; a message does not
                    # have its age, so that of the others is unknown.
                    "age": ages.pop(name, None),
                }
            )
        if len(jobs) >= NEXT_JOBS_SHOWN:
            break
    return jobs
