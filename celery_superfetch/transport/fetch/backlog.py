"""The jobs that one channel has claimed, or let land, and that its consumer has not seen yet.

A job has *landed* when a blocking read has moved it to a landing list of this owner on the server.
It has no claim yet, and no lease. The fetch loop adds and removes; any thread may take jobs out to
requeue them. If the process dies, the reaper finds all of them in the owner's private list and
landing lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from ...owner.in_flight.lease import Lease


class Landed(NamedTuple):
    """A job that a blocking read has moved. Its landing list may have another one by now."""

    owner: str
    queue_list: str
    payload: bytes


class Backlog:
    """Jobs that are ready to be delivered, and jobs that have landed; both count against the
    prefetch."""

    def __init__(self) -> None:
        self.ready: deque[Lease] = deque()
        self.landed: deque[Landed] = deque()  # the next claim names their lists

    def __len__(self) -> int:
        return len(self.ready) + len(self.landed)

    def take(self, lists: Collection[str] | None = None) -> list[Lease]:
        """Remove and return the jobs that are ready, or those from some queue lists, the newest
        first. Any thread may call this."""
        taken: list[Lease] = []
        for lease in reversed(list(self.ready)):
            if lists is None or lease.job.queue_list in lists:
                with suppress(ValueError):  # another thread was faster
                    self.ready.remove(lease)
                    taken.append(lease)
        return taken

    def lift(self, lists: Collection[str] | None = None) -> dict[str, list[Landed]]:
        """Remove and return the jobs that have landed, or those from some queue lists, by owners.
        Any thread may call this."""
        taken: dict[str, list[Landed]] = {}
        for landed in list(self.landed):
            if lists is None or landed.queue_list in lists:
                with suppress(ValueError):
                    self.landed.remove(landed)
                    taken.setdefault(landed.owner, []).append(landed)
        return taken
