"""The staleness of owners: for how long each has sent no heartbeat while this process watched.

Each heartbeat of an owner returns the other owners that sent none since its last one; the heartbeat
thread calls ``note`` with them. Reapers and the maintenance thread ask for the result. All of it is
in memory alone: a new process has watched no owner yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic


def watch_time(owner_ttl: float) -> float:
    """Return the seconds after which an observer has surely found a staleness of ``owner_ttl``:
    there is time between its looks."""
    return 1.25 * owner_ttl


class Silence:
    """The staleness of other owners, by looks at their heartbeats.

    After a look that failed, or that came more than ``longest_gap`` s after the one before, the
    watch starts again. It goes by the clock of this process, and not by that of the server. So
    neither an outage nor a server's clock that was set makes an owner stale. Times are arguments,
    in s of ``clock``.
    """

    def __init__(self, longest_gap: float, clock: Callable[[], float] = monotonic) -> None:
        self.longest_gap = longest_gap
        self.clock = clock
        self._last: float | None = None
        self._still: dict[str, tuple[int, float]] = {}

    def note(self, quiet: Mapping[str, int], now: float) -> None:
        """Note a look: the owners that sent no heartbeat since the look before -> their score (the
        server ms of their last heartbeat)."""
        before = self._last
        if before is None or now - before > self.longest_gap:
            self._still = {}
        else:
            # Stale since the look before, if it had this score then. If not, it has sent a
            # heartbeat in between, or the server's clock was set back.
            self._still = {
                owner: self._since(owner, score, before, now) for owner, score in quiet.items()
            }
        self._last = now

    def _since(self, owner: str, score: int, before: float, now: float) -> tuple[int, float]:
        entry = self._still.get(owner, (score, before))
        return entry if entry[0] == score else (score, now)

    def interrupt(self) -> None:
        """Start the watch again, since a look failed: this process may have been cut off, and not
        the others."""
        self._last, self._still = None, {}

    def silent_for(self, owner: str, score: int, now: float) -> float | None:
        """Return for how many seconds ``owner`` has had this score; 0: it has sent a heartbeat
        since; None: not known."""
        last = self._last  # another thread may look meanwhile
        if last is None or now - last > self.longest_gap:
            return None
        last_score, since = self._still.get(owner, (None, now))
        return now - since if last_score == score else 0.0

    def silent(self, now: float, least: float) -> list[str]:
        """Return the owners that have sent no heartbeat for ``least`` s."""
        return [
            owner
            for owner, (score, _) in self._still.items()
            if (self.silent_for(owner, score, now) or 0.0) >= least
        ]
