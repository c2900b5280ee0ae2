"""Counters of what has happened, for ``status`` and metrics."""

from __future__ import annotations

from typing import Any

from .database import Structure


class Stats(Structure):
    """Counter -> number (``superfetch:stats``); most are counted by the scripts themselves."""

    def count(self, counter: str) -> None:
        """One more."""
        self.client.hincrby(self.keys.stats, counter, 1)

    def read(self) -> dict[str, int]:
        """All of them, by name."""
        counters: Any = self.client.hgetall(self.keys.stats)
        return {name.decode(): int(number) for name, number in sorted(counters.items())}
