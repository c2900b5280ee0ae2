"""Groups of jobs that one script can move or change: for requeues, for parks (a *parked* job waits
on the server for its time) and for *waiting notes* (fields which say that a job has not begun).

``PendingLeases`` of ``owner/in_flight`` calls it for the jobs that this process has claimed, in the
thread that reports their states to the server; `superfetch rollback` calls it when it requeues the
jobs of dead owners. While a script runs, the server answers no other client, so one script gets a
limited number of jobs and bytes. If the process dies between two batches, the jobs of the first
batch have moved. The others are still in their owner's private list, from which a reaper takes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ..model.job import Job

#: Jobs and bytes of payload that one script moves at most. The last job may exceed the bytes.
MOVES_PER_SCRIPT, MOVES_MAX_BYTES = 100, 1024 * 1024

T = TypeVar("T")


def batches(items: Iterable[T], job_of: Callable[[T], Job]) -> Iterator[list[T]]:
    """Group items by the owner and the queue list of their jobs, and yield each group in batches
    that one script can move. Within a group the order of the items stays.

    Arguments:
        job_of: returns the job of an item.
    """
    groups: dict[tuple[str, str], list[T]] = {}
    for item in items:
        job = job_of(item)
        groups.setdefault((job.owner, job.queue_list), []).append(item)
    for group in groups.values():
        batch: list[T] = []
        size = 0
        for item in group:
            if len(batch) == MOVES_PER_SCRIPT or size >= MOVES_MAX_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += len(job_of(item).payload)
        yield batch
