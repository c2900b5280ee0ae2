"""Suspects: jobs on probation, each of which waits for a process that it has for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .database import Structure

#: Suspects moved in one round trip.
BATCH = 50


class Suspects(Structure):
    """Jobs on probation (``superfetch:probation:<queue list>``), and who rests for them."""

    def lists(self) -> frozenset[str]:
        """Queue lists with suspects."""
        names: Any = self.client.smembers(self.keys.on_probation)
        return frozenset(name.decode() for name in names)

    def size(self, queue_list: str) -> int:
        """Number of those from one queue list."""
        return int(self.client.llen(self.keys.probation(queue_list)))

    def let_rest(self, owner: str, lists: Sequence[str], first: float, work: int) -> bool | None:
        """Whether an owner rests for suspects from some queue lists; None: there are none.

        With no list it says that its rest lasted until now, and that a suspect had its turn.

        Arguments:
            first: seconds of the first rest.
            work: how many times as long as a rest nobody rests afterwards.
        """
        keys = [self.keys.rest, self.keys.on_probation, *map(self.keys.probation, lists)]
        answer = self.scripts.run("rest", keys, [owner, int(first * 1000), work, *lists])
        return None if answer < 0 else bool(answer)

    def give_back(self, queue_list: str) -> int:
        """Move those from a queue list to its front; their number."""
        suspects, queue = self.keys.probation(queue_list), self.keys.queue(queue_list)
        size = self.size(queue_list)
        # From the newest to the oldest, each in front of the one before.
        for at in range(0, size, BATCH):
            with self.client.pipeline(transaction=False) as pipe:
                for _ in range(min(BATCH, size - at)):
                    pipe.lmove(suspects, queue, "LEFT", "RIGHT")
                pipe.execute()
        return size

    def purge(self, lists: Sequence[str]) -> int:
        """Delete those from some queue lists; their number."""
        with self.client.pipeline() as pipe:
            for name in lists:
                suspects = self.keys.probation(name)
                pipe.llen(suspects)
                pipe.delete(suspects)
                pipe.srem(self.keys.on_probation, name)
            return sum(pipe.execute()[::3])
