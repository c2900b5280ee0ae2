"""Key tracking: the server reports changes of the queue lists that have no blocking read (CLIENT
TRACKING), so that a worker of many queues learns of a job there. ``transport/fetch/reads.py`` uses
it from the event loop. It moves no job: if the process dies, only its two connections end."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from .database import Database, Structure
from .wire.clients import LoneConnection
from .wire.connections import Params

LOOK_ANEW = 20.0  # seconds for which a list is known to be empty: a message may be lost


class Arrivals(Structure):
    """Two connections of one worker: one asks which queue lists exist, the other receives the
    server's messages that they changed. RESP2 needs two."""

    def __init__(self, database: Database, params: Params) -> None:
        super().__init__(database)
        params = {**params, "protocol": 2}
        self.hearer, self.looker = LoneConnection(params), LoneConnection(params)
        self.empty: set[str] = set()  # a message comes when they change
        self._asked: set[str] = set()  # answer to come; not changed since
        self.anew_at = 0.0  # at all of them (monotonic s)
        try:
            self.fds = self.hearer.connect(), self.looker.connect()
            number = self.hearer.ask("CLIENT", "ID")
            self.hearer.ask("SUBSCRIBE", "__redis__:invalidate")
            self.looker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        except BaseException:
            self.close()
            raise

    def track(self, lists: Collection[str]) -> None:
        """Ask, without waiting, whether any of these lists has a job; the server then reports the
        next change of each."""
        if self.looker.waits_since:
            return
        if monotonic() >= self.anew_at:
            self.anew_at = monotonic() + LOOK_ANEW
            self.empty.clear()
            self.hearer.send("PING")  # a firewall forgets a connection that is silent
        if new := [name for name in lists if name not in self.empty]:
            self._asked = set(new)
            self.looker.send("EXISTS", *map(self.keys.queue, new))

    def overdue(self, limit: float) -> bool:
        """Return whether a reply is missing for longer than ``limit`` seconds."""
        return self.hearer.overdue(limit) or self.looker.overdue(limit)

    def has_jobs(self) -> bool:
        """Read the reply to the question of ``track``; return whether any of its lists has a
        job."""
        has_jobs = bool(self.looker.read())
        if not has_jobs:
            self.empty |= self._asked
        self._asked = set()
        return has_jobs

    def changed(self) -> set[str]:
        """Read the server's messages; return the queue lists that have changed."""
        changed: set[str] = set()
        while True:
            kind, *rest = self.hearer.read()
            if kind == b"message":
                if rest[1] is None:  # the whole database did
                    changed |= self.empty | self._asked
                else:
                    names = (key.decode(errors="replace") for key in rest[1])
                    changed.update(name[len(self.keys.prefix) :] for name in names)
            # The socket would not show again what came with it.
            if not self.hearer.can_read():
                self.empty -= changed
                self._asked -= changed
                return changed

    def close(self) -> None:
        self.looker.disconnect()
        self.hearer.disconnect()
