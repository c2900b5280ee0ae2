"""Pauses and resumes a queue for all workers, and counts the workers and jobs that this concerns.

`superfetch queue pause` and `resume` call it, and so does the page. A pause is one command to the
server (``store/paused_queues.py``): if the process dies, it is done, or it is not.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BadQueue
from ..inspector import Inspector, Pause
from ..model.humanize import number

#: Names of queues that an error lists.
QUEUES_LISTED = 20


class Concern(NamedTuple):
    """The workers and the jobs of one queue."""

    workers: int  # running ones that consume it
    waiting: int
    probation: int
    parked: int  # scheduled jobs
    seconds: float  # within which each of these workers learns of a pause, or of its end

    def __str__(self) -> str:
        jobs = f"{number(self.workers, 'worker')} and {number(self.waiting, 'waiting job')}"
        if self.probation:
            jobs += f", {self.probation} on probation"
        return jobs + (f", {self.parked} scheduled" if self.parked else "")


def concern(inspector: Inspector, queue: str) -> Concern:
    """Count the workers and the jobs of a queue."""
    lists = sorted({queue, *(name for name in _lists(inspector) if _of(inspector, name) == queue)})
    lengths = inspector.queues.lengths(lists)
    serving = [
        record
        for record in inspector.registry.healthy()
        if {*record.lists}.difference(record.unconsumed).intersection(lists)
    ]
    return Concern(
        len(serving),
        sum(length for length, _ in lengths if isinstance(length, int)),
        sum(probation for _, probation in lengths),
        sum(inspector.parked.sizes(lists).values()),
        max((record.heartbeat_interval for record in serving), default=0.0),
    )


def pause(inspector: Inspector, queue: str, by: str, *, force: bool = False) -> tuple[Pause, bool]:
    """Pause a queue; return the pause, and whether it is new.

    Arguments:
        by: who does it.
        force: also pause a queue that nothing names yet.

    Raises:
        BadQueue: no queue can have that name, or too many are paused; or no worker, setting or job
            names it, and ``force`` is not set.
    """
    if not force:
        known = sorted({_of(inspector, name) for name in _lists(inspector)})
        if queue not in known:
            names = ", ".join(known[:QUEUES_LISTED]) or "none"
            others = f" and {len(known) - QUEUES_LISTED} more" if len(known) > QUEUES_LISTED else ""
            raise BadQueue(
                f"queue {queue!r} is unknown: it was not paused. Known queues: {names}{others}. "
                "`queue pause --force` pauses it before its first worker or job comes"
            )
    return inspector.paused.pause(queue, by)


def _lists(inspector: Inspector) -> set[str]:
    """Return all queue lists that a setting, a worker or a job names."""
    registry = inspector.registry
    records = registry.records([*registry.owners(), *registry.tombstones()]).values()
    lists = {name for record in records for name in record.lists}
    lists |= {*inspector.lists, *registry.served(), *inspector.queues.noted()}
    return lists | {*inspector.suspects.lists(), *inspector.parked.lists()}


def _of(inspector: Inspector, queue_list: str) -> str:
    return inspector.database.queue_of(queue_list)
