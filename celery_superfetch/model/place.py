"""The share of one worker in the wait for jobs, among workers that serve the same queue lists.

With each heartbeat the server tells an owner its *place*: its rank among those owners, how many
they are, and how many of them wait for jobs. From that alone each worker computes on which lists it
blocks, so that together they block on all of them and a job wakes one worker. Places are a moment
old, and two workers may have the same rank for a while: then a job waits for the next look at its
list, and none is lost.

``transport/fetch/reads.py`` calls this. It has no state: the death of a process leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Most lists on which a worker blocks. With four 50 workers of 20 queues need 2.1 commands for a
#: job and wake one of them; with 16 they needed 21.5 and woke 18 (``benchmarks/fleet.py``).
MOST_READS = 4
#: Readers that a list has in a fleet where all workers wait.
READERS = 4


class Place(NamedTuple):
    """An owner's place among the owners that serve the same queue lists, as of its last
    heartbeat."""

    rank: int = 0  # from 0, in the order of their names
    owners: int = 1
    idle: int = 1  # those that waited for jobs at their last heartbeats

    def read_count(self, list_count: int) -> int:
        """Return on how many of ``list_count`` lists this owner blocks, so that each list has about
        ``READERS`` of them."""
        return min(max(-(-READERS * list_count // max(self.owners, 1)), 1), MOST_READS)

    def are_few(self, list_count: int, reads: int) -> bool:
        """Return whether so few owners wait, with ``reads`` each, that lists may have no reader:
        then the server has to report what comes to those (key tracking). Two for each list are
        wanted, since places are a moment old."""
        return max(self.idle, 1) * reads < 2 * list_count

    def share(self, lists: Sequence[str], reads: int) -> list[str]:
        """Return the lists on which this owner blocks, ``reads`` neighbours of ``lists``. All
        owners have to give the lists in the same order."""
        first = self.rank * reads
        return [lists[(first + n) % len(lists)] for n in range(min(reads, len(lists)))]
