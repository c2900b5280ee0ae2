"""The document of ``one_job`` as titles and lines, for the command and the page alike.

``commands/job_shown.py`` and ``web/cache.py`` call it. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..inspector import PARKED, PROBATION, RESERVED, RUNNING, WAITING
from ..model.humanize import command, number

NOT_RECORDED = "not recorded"

DEAD = "dead"  # the state of a job in the dead set

#: State of a job -> its name for people.
STATE_TITLES = {
    RUNNING: "running",
    RESERVED: "reserved",
    PROBATION: "on probation",
    PARKED: "scheduled",
    WAITING: "waiting",
    DEAD: "dead",
}

ENDED = (
    "A job that has ended leaves nothing in Redis but its result: look for it in the result "
    "backend, and in the logs of the workers."
)


def summary_of(job: Mapping[str, Any]) -> dict[str, object]:
    """Return the title and the value of each field of a job that is not empty."""
    worker = f"{job['node'] or job['owner']} (pid {job['pid']})" if job["pid"] else job["node"]
    fields = {
        "Task id": job["task_id"],
        "Digest": job["digest"],
        "Id in the dead set": job.get("dead_id"),
        "Reason": job.get("reason"),
        "Arguments": job["args"],
        "Keywords": job["kwargs"],
        "Queue": job["queue"],
        "Worker": worker,
        "Retries": job["retries"],
        "Strikes": job["strikes"],
        "Recoveries": job["recoveries"],
        "Stops": job["stops"],
        "Requeues": job["requeues"],
        "Due": job["due"],
        "Expires": job["expires"],
        "Time limits": job["time_limits"],
        "Sent by": job["sent_by"],
    }
    return {title: value for title, value in fields.items() if value not in (None, "")}


def workflow_of(job: Mapping[str, Any]) -> dict[str, str]:
    """Return the title and the value of each part of a job's workflow."""
    flow = job["workflow"]
    ids = {"Root": flow["root_id"], "Parent": flow["parent_id"], "Group": flow["group"]}
    if flow["unread"]:
        return {**_filled(ids), "Next steps": f"not shown: {flow['unread']}"}
    kinds = {"Next steps": "next", "Callbacks": "callbacks", "Errbacks": "errbacks"}
    steps = {
        title: _steps_text(flow[kind])
        for title, kind in {**kinds, "Chord body": "chord"}.items()
        if flow[kind]["count"]
    }
    return {**_filled(ids), **(steps or {"Next steps": "none"})}


def _filled(fields: Mapping[str, str | None]) -> dict[str, str]:
    return {title: value for title, value in fields.items() if value}


def _steps_text(steps: Mapping[str, Any]) -> str:
    hidden = steps["count"] - len(steps["tasks"])
    names = ", ".join(steps["tasks"])
    return f"{names} and {hidden} more" if hidden else names


def logs_of(job: Mapping[str, Any]) -> list[str]:
    """Return for each worker that had a job its host, and which part of its log is about it."""
    return [
        f"on host {log['host']}, {_range_of(log)}"
        + (f": the log of {log['node']}" if log["node"] else f" (owner={log['owner']})")
        for log in job["logs"]
    ]


def _range_of(log: Mapping[str, Any]) -> str:
    """Return which part of a worker's log is about a job, as text."""
    begin = f"from {_clock(log['from'])}" if log["from"] else "from the start of the worker"
    return f"{begin} to {_clock(log['to'])}" if log["to"] else f"{begin} until now"


def _clock(time: str) -> str:
    """Return a time in ISO 8601 as logs in UTC have it."""
    return f"{time[:10]} {time[11:19]} UTC"


def found_of(document: Mapping[str, Any]) -> str:
    """Return the result of a search for a part of a name, as text."""
    jobs = [*document["jobs"]]
    counts = Counter(STATE_TITLES[job["state"]] for job in jobs)
    states = ", ".join(f"{count} {title}" for title, count in counts.items())
    found = f"{number(len(jobs), 'job')} found: {states}" if jobs else "No job was found"
    cut = " More may match: not all jobs were searched." if jobs and document["more"] else ""
    ended = "" if jobs else f" {ended_of(document)}"
    if not jobs and not document["id"].strip("*"):
        ended = f" No job has this text as its id. `{command()} jobs` lists all jobs."
    return f"{found}.{cut} Searched: {examined_of(document)}.{ended}"


def ended_of(document: Mapping[str, Any]) -> str:
    """Return what it means that no job was found: it has ended, or it was not among the jobs that
    were searched."""
    if document["more"]:
        return "It may be one of the jobs that were not searched."
    return ENDED


def examined_of(document: Mapping[str, Any]) -> str:
    """Return the places that were searched, and how many of their jobs."""
    parts = []
    for place in document["examined"]:
        examined, jobs = place["examined"], place["jobs"]
        count = str(jobs) if examined >= jobs else f"{examined} of {jobs}"
        parts.append(f"{count} {place['place']}")
    return ", ".join(parts)
