"""Groups of jobs that one script can move, for requeues and parks.

While a script runs, the server answers no other client, so its jobs and bytes are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..model.job import Job

#: Jobs, and bytes but for the last job, that one script moves at most.
BATCH, ROOM = 100, 1024 * 1024

T = TypeVar("T")


def batches(items: Iterable[T], job_of: Callable[[T], Job]) -> Iterator[list[T]]:
    """Group items by the owner and the queue list of their jobs, in batches that one script can
    move; yield them in their order."""
    groups: dict[tuple[str, str], list[T]] = {}
    for item in items:
        job = job_of(item)
        groups.setdefault((job.owner, job.queue_list), []).append(item)
    for group in groups.values():
        batch: list[T] = []
        size = 0
        for item in group:
            if len(batch) == BATCH or size >= ROOM:
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += len(job_of(item).payload)
        yield batch
