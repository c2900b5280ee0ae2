"""What owners hold, counted or a page at a time: for those who look, not for those who work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .database import Structure

#: Owners of one script. With 80 lists each they are 8,000 looks, 5 ms of the server.
CHUNK = 50

#: Jobs of any size that are read at a time.
PAGE = 20


class Holding(NamedTuple):
    """How many jobs one owner has in flight."""

    running: int = 0
    #: Claimed, and not begun.
    reserved: int = 0
    #: Waiting in the worker's memory for their time: ETA, countdown, or a retry's.
    eta: int = 0

    @property
    def in_flight(self) -> int:
        """All of them."""
        return self.running + self.reserved + self.eta


class Holdings(Structure):
    """Counts of private lists, held and running jobs, read together."""

    def of(self, owners: Sequence[str]) -> dict[str, Holding]:
        """Owner -> what it holds, by a script for each fifty of them."""
        keys, found = self.keys, {}
        for at in range(0, len(owners), CHUNK):
            some = owners[at : at + CHUNK]
            names = [
                name
                for o in some
                for name in (keys.private(o, ""), keys.held(o, ""), keys.running(o))
            ]
            counts = iter(self.scripts.run("holdings", [keys.facts(o) for o in some], names))
            for owner, near, aside, runs in zip(some, counts, counts, counts, strict=True):
                # What runs is in a private list, unless its record outlived it by a moment.
                runs = min(runs, near)
                found[owner] = Holding(runs, near - runs, aside)
        return found

    def near(self, owner: str, queue_list: str) -> Iterator[list[bytes]]:
        """Pages of a private list, the oldest claim first."""
        return self._pages(self.keys.private(owner, queue_list))

    def on_probation(self, queue_list: str) -> Iterator[list[bytes]]:
        """Pages of the jobs on probation from a queue list, the oldest first."""
        return self._pages(self.keys.probation(queue_list))

    def aside(self, owner: str, queue_list: str) -> Iterator[dict[str, bytes]]:
        """Pages of held jobs by their claim ids, in no order; one may come twice."""
        key, at = self.keys.held(owner, queue_list), -1
        while at:
            found: Any = self.client.hscan(key, max(at, 0), count=PAGE)
            at, rows = found
            yield {id.decode(): payload for id, payload in rows.items()}

    def _pages(self, key: str) -> Iterator[list[bytes]]:
        """From the right: what comes meanwhile comes at the left."""
        last = -1
        while page := list[Any](self.client.lrange(key, last - PAGE + 1, last)):
            yield page[::-1]
            last -= PAGE
