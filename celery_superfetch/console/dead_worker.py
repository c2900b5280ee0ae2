"""The end of a worker that is not registered any more: how it died, and what became of its jobs.

``workers.one_worker`` calls ``death_of``. Redis has the deaths of the last week, the history of
each job that was recovered and has not ended since, and the dead set. It only reads: a death leaves
nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..inspector import PARKED, PROBATION, RESERVED, WAITING, Inspector, JobPlace, SeenJob
from ..model.dead_job import utc
from ..model.humanize import ago, number
from ..model.job import digest, parse, queue_list_of
from .findings_of_workers import MAY_RUN, fate_of
from .job_texts import DEAD
from .overview import queue_lists_of

#: Jobs whose histories are read to find those that a dead worker had; recovered jobs are among the
#: next ones of their queues.
JOBS_READ = 2_000

#: Jobs of one round trip, and those of each queue that are read.
JOBS_PER_READ, JOBS_OF_QUEUE = 200, 200

#: Dead jobs that are read, the newest.
DEAD_READ = 500


def death_of(inspector: Inspector, owner: str, now: int) -> dict[str, Any] | None:
    """Return the death of an owner, with the jobs that it had and that are still in Redis; None if
    no death of it is recorded.

    Arguments:
        now: server ms.
    """
    deaths = (death for death in inspector.stats.deaths() if death["owner"] == owner)
    if (death := next(deaths, None)) is None:
        return None
    jobs = [*_recovered(inspector, owner), *_dead(inspector, owner)]
    last = death["last_heartbeat"]
    row = {**death, "at": utc(death["at"] / 1000), "last_heartbeat": utc(last / 1000 or None)}
    row |= {"jobs": jobs, "jobs_left": death["recovered"] + death["killed"]}
    return {**row, "text": text_of(row, utc(now / 1000) or "")}


def text_of(death: dict[str, Any], now: str) -> str:
    """Return the death of a worker as sentences."""
    verb = "was declared dead" if death["reason"] in MAY_RUN else "died"
    state = ", while it was stopping" if death["state"] == "stopping" else ""
    text = f"it {verb} {ago(death['at'], now)} ({death['reason']}){state}: {fate_of(death)}."
    if death["last_heartbeat"]:
        text += f" Its last heartbeat came {ago(death['last_heartbeat'], now)}."
    found, left = len(death["jobs"]), death["jobs_left"]
    if left > found:
        gone = number(left - found, "job")
        text += (
            f" {gone} of these {'is' if left - found == 1 else 'are'} not listed below: a job that "
            "has ended since leaves nothing in Redis but its result, and not all jobs are read."
        )
    return text


def _recovered(inspector: Inspector, owner: str) -> Iterator[dict[str, Any]]:
    """Yield the jobs in whose histories an owner has lost a run."""
    jobs = islice(_jobs(inspector), JOBS_READ)
    while some := [*islice(jobs, JOBS_PER_READ)]:
        digests = [digest(job.payload) for job in some]
        for job, name, counters in zip(
            some, digests, inspector.strikes.counters(digests), strict=True
        ):
            entry = _last_of(counters.history, owner)
            if entry is None:
                continue
            envelope, queue_list = parse(job.payload), job.place.queue_list
            queue_list = queue_list or queue_list_of(job.claim_id)
            yield {
                "id": envelope.task_id or name,
                "digest": name,
                "task": envelope.task,
                "state": "running" if job.runs else job.place.state,
                "queue": inspector.database.queue_of(queue_list),
                "strike": str(entry.get("strike") or "") or None,
                "dead_id": None,
            }


def _last_of(history: Sequence[Mapping[str, Any]], owner: str) -> Mapping[str, Any] | None:
    """Return the last entry of an owner in the history of a job: earlier ones are of pool processes
    that the worker lost before its end."""
    return next((entry for entry in reversed(history) if entry.get("owner") == owner), None)


def _jobs(inspector: Inspector) -> Iterator[SeenJob]:
    """Yield jobs in flight, on probation and scheduled, and the next ones of each queue."""
    in_flight_jobs, owners = inspector.in_flight_jobs, [*inspector.registry.owners()]
    queue_lists = sorted(queue_lists_of(inspector, owners))
    places = [JobPlace(RESERVED, owner) for owner in owners]
    places += [JobPlace(PROBATION, queue_list=name) for name in inspector.suspects.lists()]
    for batch in in_flight_jobs.jobs(places, JOBS_PER_READ):
        yield from batch
    for state in (WAITING, PARKED):
        for name in queue_lists:
            read = 0
            for batch in in_flight_jobs.jobs([JobPlace(state, "", name)], JOBS_PER_READ):
                yield from batch
                read += len(batch)
                if read >= JOBS_OF_QUEUE:
                    break


def _dead(inspector: Inspector, owner: str) -> Iterator[dict[str, Any]]:
    """Yield those of the newest dead jobs that an owner had, at their death or before."""
    for job in inspector.dead_set.page(0, DEAD_READ):
        entry = _last_of(job.history, owner)
        if job.owner == owner or entry:
            yield {
                "id": job.task_id or job.id,
                "digest": job.id,
                "task": job.task,
                "state": DEAD,
                "queue": inspector.database.queue_of(job.queue_list),
                "strike": str((entry or {}).get("strike") or "") or None,
                "dead_id": job.id,
            }
