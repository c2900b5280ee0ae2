"""The jobs of one channel that its consumer has not received yet: claimed, or landed.

A job has *landed* when a blocking read has moved it to a landing list of this owner on the server.
It has no claim yet, and no lease (the record of a claimed job in this process). The fetch loop adds
and removes jobs; any thread may remove jobs to requeue them. If the process dies, the reaper finds
all of them in the owner's private list (the claimed ones) and in its landing lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from ...owner.in_flight.lease import Lease


class Landed(NamedTuple):
    """A job that a blocking read has moved to the landing list of ``owner`` and ``queue_list``. By
    now another job may be in its place there, if something has requeued this one."""

    owner: str
    queue_list: str
    payload: bytes


class Backlog:
    """Jobs that are ready to be delivered, and jobs that have landed; both count against the
    prefetch."""

    def __init__(self) -> None:
        self.ready: deque[Lease] = deque()  # claimed
        self.landed: deque[Landed] = deque()  # the next claim takes them from their landing lists

    def __len__(self) -> int:
        return len(self.ready) + len(self.landed)

    def take_ready(self, lists: Collection[str] | None = None) -> list[Lease]:
        """Remove and return the jobs that are ready, or only those from some queue lists. The
        newest come first, the order in which jobs are requeued to the front. Any thread may call
        this."""
        taken: list[Lease] = []
        for lease in reversed(list(self.ready)):
            if lists is None or lease.job.queue_list in lists:
                with suppress(ValueError):  # another thread was faster
                    self.ready.remove(lease)
                    taken.append(lease)
        return taken

    def take_landed(self, lists: Collection[str] | None = None) -> dict[str, list[Landed]]:
        """Remove and return the jobs that have landed, or only those from some queue lists: owner
        -> its jobs, the oldest first. Any thread may call this."""
        taken: dict[str, list[Landed]] = {}
        for landed in list(self.landed):
            if lists is None or landed.queue_list in lists:
                with suppress(ValueError):
                    self.landed.remove(landed)
                    taken.setdefault(landed.owner, []).append(landed)
        return taken
