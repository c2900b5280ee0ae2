"""The staleness of owners (the parts of workers that claim jobs): for how long each has sent no
heartbeat while this process watched.

The server answers each heartbeat with the other owners that have sent none since the last heartbeat
of the asking owner. Such an answer is a *look*. The heartbeat thread calls ``observe`` with it, and
``interrupt`` if the heartbeat failed; a reaper without an owner looks for itself. Reapers and the
maintenance thread ask for the result. It is all in memory: a new process has watched no owner yet,
and finds a dead one only when it has watched for long enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic


def watch_time(owner_ttl: float) -> float:
    """Return for how many seconds a process has to watch until it has surely found a staleness of
    ``owner_ttl``: a quarter more, since there is time between two looks."""
    return 1.25 * owner_ttl


class StalenessTracker:
    """A tracker of the staleness of other owners, by looks at their heartbeats.

    After a look that failed, or that came more than ``longest_gap`` s after the one before, the
    watch starts again. Time is measured by the clock of this process, not by that of the server.
    So neither an outage nor a server's clock that was set makes an owner stale. Callers pass
    ``clock()`` as ``now``.
    """

    def __init__(self, longest_gap: float, clock: Callable[[], float] = monotonic) -> None:
        self.longest_gap = longest_gap
        self.clock = clock
        self._last: float | None = None
        #: Stale owner -> the server ms of its last heartbeat, and since when it is stale
        #: (``clock``).
        self._still: dict[str, tuple[int, float]] = {}

    def observe(self, quiet: Mapping[str, int], now: float) -> None:
        """Add a look: for each owner that sent no heartbeat since the look before, its score, which
        is the server ms of its last heartbeat."""
        before = self._last
        if before is None or now - before > self.longest_gap:
            self._still = {}
        else:
            # An owner that is new here has been stale since the look before: the server says so. If
            # it was here with another score, it has sent a heartbeat in between, or the server's
            # clock was set back: then it is stale from now on.
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

    def staleness_of(self, owner: str, score: int, now: float) -> float | None:
        """Return for how many seconds ``owner`` has had this score; 0: at the last look it had sent
        a heartbeat since; None: not known, since there was no look for too long."""
        last = self._last  # read once: another thread may call ``observe`` meanwhile
        if last is None or now - last > self.longest_gap:
            return None
        last_score, since = self._still.get(owner, (None, now))
        return now - since if last_score == score else 0.0

    def stale_owners(self, now: float, least: float) -> list[str]:
        """Return the owners that have sent no heartbeat for ``least`` s."""
        return [
            owner
            for owner, (score, _) in self._still.items()
            if (self.staleness_of(owner, score, now) or 0.0) >= least
        ]
