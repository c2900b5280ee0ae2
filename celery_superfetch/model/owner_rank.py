"""The queue lists that one worker blocks on, among the workers that serve the same lists (a queue
list is the Redis list of one queue and priority).

With each heartbeat the server tells an owner (the part of a worker that claims jobs) its *rank*:
its number among those owners, how many they are, and how many of them wait for jobs. From that
alone each worker computes on which lists it blocks, so that together they block on all of them and
a job wakes one worker. Ranks are a moment old, and two workers may have the same number for a
while: then a list may have no reader, and a job waits there until a worker looks at all of its
lists, which each does once a second. No job is lost.

``transport/fetch/blocking_reads.py`` calls this. It has no state: the death of a process leaves
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Most lists on which a worker blocks. With four 50 workers of 20 queues need 2.1 commands for a
#: job and wake one of them; with 16 they needed 21.5 and woke 18 (``benchmarks/fleet.py``).
MOST_READS = 4
#: Readers that a list has in a fleet where all workers wait.
READERS_PER_LIST = 4


class OwnerRank(NamedTuple):
    """An owner's rank among the owners that serve the same queue lists, as of its last
    heartbeat."""

    number: int = 0  # from 0, in the order of the owners' names
    owners: int = 1
    idle: int = 1  # those that waited for jobs at their last heartbeats

    def read_count(self, list_count: int) -> int:
        """Return on how many of ``list_count`` lists this owner blocks, so that each list has about
        ``READERS_PER_LIST`` of them."""
        return min(max(-(-READERS_PER_LIST * list_count // max(self.owners, 1)), 1), MOST_READS)

    def are_few(self, list_count: int, reads: int) -> bool:
        """Return whether so few owners wait, with ``reads`` lists each, that some lists may have no
        reader: then the server has to report when jobs come to those (CLIENT TRACKING). Two readers
        for each list are wanted, since ranks are a moment old."""
        return max(self.idle, 1) * reads < 2 * list_count

    def share(self, lists: Sequence[str], reads: int) -> list[str]:
        """Return the lists on which this owner blocks: ``reads`` consecutive ones of ``lists``. All
        owners have to give the lists in the same order."""
        first = self.number * reads
        return [lists[(first + n) % len(lists)] for n in range(min(reads, len(lists)))]
