"""Jobs that were claimed and that no consumer has seen yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from contextlib import suppress

from ...model.job import Claimed, Job


class Backlog:
    """What a channel has claimed ahead of its consumers; it counts against the prefetch."""

    def __init__(self) -> None:
        self.ready: deque[Claimed] = deque()
        self.unconfirmed: list[Job] = []  # a blocking read brought them; the next claim confirms

    def __len__(self) -> int:
        return len(self.ready) + len(self.unconfirmed)

    @property
    def jobs(self) -> list[Job]:
        return [*(claimed.job for claimed in self.ready), *self.unconfirmed]

    def take_out(self, lists: Collection[str]) -> list[Job]:  # newest first
        back = [job for job in self.jobs if job.queue_list in lists]
        self.ready = deque(c for c in self.ready if c.job.queue_list not in lists)
        self.unconfirmed = [job for job in self.unconfirmed if job.queue_list not in lists]
        return back[::-1]

    def take_all(self) -> list[Job]:
        """Let go of all, newest first; any thread may."""
        back: list[Job] = []
        with suppress(IndexError):
            while True:
                back.append(self.unconfirmed.pop())
        with suppress(IndexError):
            while True:
                back.append(self.ready.pop().job)
        return back
