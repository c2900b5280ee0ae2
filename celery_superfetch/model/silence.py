"""Silence is watched, not computed: a watch over the heartbeats of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic


def watch_time(owner_ttl: float) -> float:
    """Seconds in which whoever looks on sees a silence of ``owner_ttl``: looks come in between."""
    return 1.25 * owner_ttl


class Silence:
    """How long owners have been silent while this process looked on. Pure; times are given. Looks
    count if all succeeded, ``longest_gap`` seconds after each other at most, by the watcher's own
    ``clock``: an outage or a step of the server's clock convicts nobody."""

    def __init__(self, longest_gap: float, clock: Callable[[], float] = monotonic) -> None:
        self.longest_gap = longest_gap
        self.clock = clock
        self._last: float | None = None
        self._still: dict[str, tuple[int, float]] = {}

    def note(self, quiet: Mapping[str, int], now: float) -> None:
        """Take in one look: the owners that did not write since the one before -> their score."""
        before = self._last
        if before is None or now - before > self.longest_gap:
            self._still = {}
        else:
            # Silent since the look before, if it had this score then: else it has been heard in
            # between, or the server's clock was set back.
            self._still = {
                owner: self._since(owner, score, before, now) for owner, score in quiet.items()
            }
        self._last = now

    def _since(self, owner: str, score: int, before: float, now: float) -> tuple[int, float]:
        entry = self._still.get(owner, (score, before))
        return entry if entry[0] == score else (score, now)

    def interrupt(self) -> None:
        """A look failed: whatever happened to others may have happened to us."""
        self._last, self._still = None, {}

    def silent_for(self, owner: str, score: int, now: float) -> float | None:
        """Seconds ``owner`` has stood still at ``score``; 0 if it is heard, None: unknown."""
        last = self._last  # another thread may look meanwhile
        if last is None or now - last > self.longest_gap:
            return None
        last_score, since = self._still.get(owner, (None, now))
        return now - since if last_score == score else 0.0

    def silent(self, now: float, least: float) -> list[str]:
        return [
            owner
            for owner, (score, _) in self._still.items()
            if (self.silent_for(owner, score, now) or 0.0) >= least
        ]
