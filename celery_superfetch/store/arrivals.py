"""Key tracking (CLIENT TRACKING): the server reports which queue lists have changed.

A worker of many queues has no blocking read for each. It waits for these reports on the lists that
have none.

``transport/fetch/reads.py`` calls this in the thread of the worker's event loop: ``track`` when the
queues are empty, ``changed`` when the server has sent reports, ``has_jobs`` when it has replied.

If the process dies, the server closes the two connections and stops the tracking. No key was
written and no job was moved, so nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from .database import Database, Structure
from .redis.clients import LoneConnection
from .redis.connections import Params

#: Seconds after which all lists are checked again: a report may have been lost.
LOOK_ANEW = 20.0


class Arrivals(Structure):
    """Key tracking of one channel, by two connections: ``looker`` sends EXISTS for queue lists,
    which makes the server track them, and ``hearer`` receives its reports. RESP2 needs two, since a
    connection that has subscribed can send no other command."""

    def __init__(self, database: Database, params: Params) -> None:
        super().__init__(database)
        params = {**params, "protocol": 2}
        self.hearer, self.looker = LoneConnection(params), LoneConnection(params)
        #: Lists that did not exist at the last check. The server reports their next change.
        self.empty: set[str] = set()
        #: Lists of the EXISTS whose reply is not read yet, without those that changed meanwhile.
        self._asked: set[str] = set()
        self.anew_at = 0.0  # when all lists are checked again (monotonic, s)
        try:
            self.fds = self.hearer.connect(), self.looker.connect()
            number = self.hearer.ask("CLIENT", "ID")
            self.hearer.ask("SUBSCRIBE", "__redis__:invalidate")
            self.looker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        except BaseException:
            self.close()
            raise

    def track(self, lists: Collection[str]) -> None:
        """Send EXISTS for these lists, without waiting for the reply (``has_jobs`` reads it); from
        then on the server reports the next change of each. Do nothing while the last reply is not
        read yet."""
        if self.looker.waits_since:
            return
        if monotonic() >= self.anew_at:
            self.anew_at = monotonic() + LOOK_ANEW
            self.empty.clear()
            # A firewall forgets an idle connection. ``changed`` skips the reply.
            self.hearer.send("PING")
        if new := [name for name in lists if name not in self.empty]:
            self._asked = set(new)
            self.looker.send("EXISTS", *map(self.keys.queue, new))

    def overdue(self, limit: float) -> bool:
        """Return whether a reply is missing for longer than ``limit`` seconds."""
        return self.hearer.overdue(limit) or self.looker.overdue(limit)

    def has_jobs(self) -> bool:
        """Read the reply to the EXISTS of ``track``; return whether any of its lists has a job. The
        reply does not say which one: the next claim finds it."""
        has_jobs = bool(self.looker.read())
        if not has_jobs:
            self.empty |= self._asked
        self._asked = set()
        return has_jobs

    def changed(self) -> set[str]:
        """Read the server's reports; return the queue lists that have changed."""
        changed: set[str] = set()
        while True:
            kind, *rest = self.hearer.read()
            if kind == b"message":
                if rest[1] is None:  # the database was flushed: all lists have changed
                    changed |= self.empty | self._asked
                else:
                    names = (key.decode(errors="replace") for key in rest[1])
                    changed.update(name[len(self.keys.prefix) :] for name in names)
            # If a report stayed in the client's buffer, the event loop would not call again for it.
            if not self.hearer.can_read():
                self.empty -= changed
                self._asked -= changed
                return changed

    def close(self) -> None:
        self.looker.disconnect()
        self.hearer.disconnect()
