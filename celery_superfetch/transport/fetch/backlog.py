"""Jobs that were claimed and that no consumer has seen yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, MutableSequence
from contextlib import suppress

from ...model.job import Claimed, Job


class Backlog:
    """What a channel has claimed ahead of its consumers; it counts against the prefetch."""

    def __init__(self) -> None:
        self.ready: deque[Claimed] = deque()
        self.unconfirmed: list[Claimed] = []  # reads brought them; the next claim confirms

    def __len__(self) -> int:
        return len(self.ready) + len(self.unconfirmed)

    @property
    def jobs(self) -> list[Job]:
        return [claimed.job for claimed in (*self.ready, *self.unconfirmed)]

    def take(self, lists: Collection[str] | None = None) -> list[Job]:
        """Let go of all, or of those from some lists, the newest first; any thread may."""
        taken: list[Job] = []
        parts: tuple[MutableSequence[Claimed], ...] = self.unconfirmed, self.ready
        for part in parts:
            for claimed in reversed(list(part)):
                if lists is None or claimed.job.queue_list in lists:
                    with suppress(ValueError):  # somebody else was faster
                        part.remove(claimed)
                        taken.append(claimed.job)
        return taken
