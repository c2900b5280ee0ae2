"""The connection by which a worker learns of jobs in those queue lists for which it has no blocking
read.

``transport/fetch/blocking_reads.py`` calls this, for one channel, in the thread of the worker's
event loop: ``check`` or ``track`` while the queues are empty, ``read`` when the socket is readable.
``check`` asks once a second whether one of the lists has jobs (EXISTS). ``track`` makes the server
report each list that changes (CLIENT TRACKING). With tracking one job wakes every worker that
tracks its list, so ``blocking_reads.py`` uses it only if few workers wait.

If the process dies, the server closes the connection and stops the tracking. No key was written and
no job was moved, so nothing is left.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic
from typing import Any, NamedTuple

from .database import Database, Structure
from .redis.clients import LoneConnection
from .redis.connections import Params

#: Seconds between two checks. The event loop ticks once a second: with a little less than that, a
#: tick that comes early checks, too.
EXISTS_INTERVAL_S = 0.9
#: Seconds after which the server is asked about tracked lists again: a report may have been lost.
TRACK_AGAIN_S = 20.0


class ListReport(NamedTuple):
    """The content of what the server has sent."""

    changed: Collection[str] = ()  # queue lists that have changed
    has_jobs: bool = False  # a list has jobs; which one is not said: the next claim finds it


class KeyTracker(Structure):
    """Checks and key tracking of one channel, by a connection outside of the pools.

    The connection speaks RESP3, in which reports come between replies. RESP2 would need a second
    connection and REDIRECT, which Redis Cloud and Dragonfly refuse.
    """

    def __init__(self, database: Database, params: Params) -> None:
        super().__init__(database)
        self.connection = LoneConnection({**params, "protocol": 3})
        self.tracking = False
        #: Lists that were empty when they were checked, and are tracked: the server reports the
        #: next change of each. A list that is not here is asked about at the next ``track``.
        self.empty: set[str] = set()
        #: Lists of the EXISTS whose reply is not read yet, without those that changed meanwhile.
        self._asked: set[str] = set()
        #: When the server is asked about all lists again (monotonic s): for ``check`` the next one,
        #: for ``track`` a full check.
        self._due = 0.0
        try:
            self.fd = self.connection.connect()
            self.connection.expect_reports()
        except BaseException:
            self.close()
            raise

    def check(self, lists: Collection[str]) -> None:
        """Ask whether one of these lists has jobs, at most once in ``EXISTS_INTERVAL_S``; ``read``
        reads the reply."""
        if self.connection.waits_since:  # a reply is missing still
            return
        self._set_tracking(False)
        if monotonic() >= self._due:
            self._send_exists(lists, EXISTS_INTERVAL_S)

    def track(self, lists: Collection[str]) -> None:
        """Ask whether any of these lists has jobs now. The server then reports the next change of
        each of them; ``read`` reads the reply and the reports. The server is not asked about a list
        that is tracked already.

        Raises:
            ResponseError: the server refuses tracking.
        """
        if self.connection.waits_since:  # a reply is missing still
            return
        self._set_tracking(True)
        if monotonic() >= self._due:
            self.empty.clear()
        if new := [name for name in lists if name not in self.empty]:
            self._send_exists(new, TRACK_AGAIN_S)

    def _set_tracking(self, on: bool) -> None:
        if on is not self.tracking:
            self.connection.send("CLIENT", "TRACKING", "ON" if on else "OFF")
            while self.connection.receive() is None:
                pass  # reports come before the reply
            self.tracking = on
            self.empty.clear()
            self._due = 0.0

    def _send_exists(self, lists: Collection[str], again_after: float) -> None:
        if monotonic() >= self._due:
            self._due = monotonic() + again_after
        self._asked = set(lists)
        self.connection.send("EXISTS", *map(self.keys.queue, lists))

    def overdue(self, limit: float) -> bool:
        """Return whether a reply is missing for longer than ``limit`` seconds."""
        return self.connection.overdue(limit)

    def read(self) -> ListReport:
        """Read what the server has sent: reports, and the reply to ``check`` or ``track``."""
        count = None
        # A message that stayed in the client's buffer would not make the socket readable again.
        while True:
            reply = self.connection.receive()
            count = count if reply is None else reply
            if not self.connection.can_read():
                break
        changed: set[str] = set()
        while self.connection.reports:
            changed |= self._reported(self.connection.reports.popleft())
        if count is not None:
            if self.tracking and not count:
                self.empty |= self._asked
            self._asked = set()
        return ListReport(changed, bool(count))

    def _reported(self, message: list[Any]) -> set[str]:
        """Return the lists that a report names, which are not tracked any more."""
        kind, keys = message[0], message[1]
        if kind != b"invalidate":
            return set()
        if keys is None:  # the database was flushed: all lists have changed
            changed = self.empty | self._asked
        else:
            prefix = len(self.keys.prefix)
            changed = {key.decode(errors="replace")[prefix:] for key in keys}
        self.empty -= changed
        self._asked -= changed
        return changed

    def close(self) -> None:
        self.connection.disconnect()
