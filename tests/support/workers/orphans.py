"""Jobs of an owner that is marked reaped, and how they are recovered."""

from __future__ import annotations

from collections.abc import Sequence

from celery_superfetch.model.job import Counters, Job
from celery_superfetch.model.owner_record import OwnerRecord
from support.workers.bench import Bench


def reaped(bench: Bench, *jobs: bytes, **record: object) -> OwnerRecord:
    """An owner that is marked reaped, with jobs, oldest first."""
    owner = bench.dead_owner(jobs, **record)
    assert bench.mark(owner)
    return owner


def recover(
    bench: Bench,
    owner: OwnerRecord,
    payloads: Sequence[bytes],
    counters: Counters | None = None,
    marked: bool = True,
    expires: int = 0,
    **changes: object,
) -> list[bytes]:
    recoveries = [
        bench.recovery(newest(bench, owner, raw), counters, **changes) for raw in payloads
    ]
    replies: list[bytes] = bench.run(bench.recoveries.recover(recoveries, expires, marked=marked))
    return replies


def newest(bench: Bench, owner: OwnerRecord, raw: bytes) -> Job:
    """The newest claim of these bytes; one that nobody knows if it holds none."""
    gone = Job(owner.owner, "mail", raw, "ff:mail")
    return next((job for job in bench.held(owner) if job.payload == raw), gone)
