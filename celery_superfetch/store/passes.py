"""Locks that keep passes to one per interval, whoever runs them."""

from __future__ import annotations

from time import monotonic

from .database import Database, Structure

#: Seconds after which a lock that is held for longer is asked for again.
ASK_AGAIN = 60.0


class Passes(Structure):
    """The locks (``superfetch:lock:<scope>``). They expire, so a crash holds up nobody."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        #: Scope of a long interval -> when it is asked for again (monotonic s).
        self._refused: dict[str, float] = {}

    def take(self, scope: str, seconds: float) -> bool:
        """Whether it is the caller's turn; nobody else has one for so many seconds."""
        now = monotonic()
        if now < self._refused.get(scope, 0.0):
            return False
        milliseconds = max(1, int(seconds * 1000))
        ours = bool(self.scripts.run("lock", [self.keys.lock(scope)], [milliseconds]))
        if not ours and seconds > ASK_AGAIN:
            self._refused[scope] = now + ASK_AGAIN
        return ours

    def give_back(self, scope: str) -> None:
        """Let the next have a turn before the time is over."""
        self.client.delete(self.keys.lock(scope))
