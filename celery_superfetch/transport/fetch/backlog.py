"""What one channel has claimed, or let land, and no consumer has seen yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress

from ...model.job import Claimed, Job


class Backlog:
    """They count against the prefetch."""

    def __init__(self) -> None:
        self.ready: deque[Claimed] = deque()
        #: By reads: whose, and from which queue list; the next claim names them.
        self.landed: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self.ready) + len(self.landed)

    def take(self, lists: Collection[str] | None = None) -> list[Job]:
        """Let go of all that are claimed, or of those from some queue lists, the newest first; any
        thread may."""
        taken: list[Job] = []
        for claimed in reversed(list(self.ready)):
            if lists is None or claimed.job.queue_list in lists:
                with suppress(ValueError):  # somebody else was faster
                    self.ready.remove(claimed)
                    taken.append(claimed.job)
        return taken

    def lift(self, lists: Collection[str] | None = None) -> dict[str, list[str]]:
        """As ``take``, of what landed: owner -> the names of its queue lists."""
        taken: dict[str, list[str]] = {}
        for owner, name in list(self.landed):
            if lists is None or name in lists:
                with suppress(ValueError):
                    self.landed.remove((owner, name))
                    taken.setdefault(owner, []).append(name)
        return taken
