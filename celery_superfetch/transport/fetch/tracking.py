"""Key tracking: the server says when a list changes on which no connection waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Protocol

from redis.exceptions import RedisError, ResponseError

from ...owner.membership import BLOCK_TIMEOUT, Membership
from ...store.wire.connections import lone_connection
from .blocking_read import OVERDUE

logger = logging.getLogger(__name__)

#: Seconds until it is tried again where a server has refused it.
TRY_AGAIN = 60.0

#: Where a server sends word of changed keys to connections that speak RESP2.
CHANNEL = "__redis__:invalidate"


class Loop(Protocol):
    """Whatever calls back when a socket is readable."""

    def watch(self, fd: int, on_readable: Callable[[], bool]) -> None:
        """Call ``on_readable`` when ``fd`` is."""

    def unwatch(self, fd: int) -> None:
        """Undo ``watch``."""


class Tracking:
    """Tells of arrivals in any number of lists.

    For the sake of caches a server remembers who has looked at a key, and sends him one message
    when it changes. Here one connection looks, and another hears: in RESP2 none can do both. A job
    wakes all who look at its list: each looks again, and claims if the job is still there.

    Arguments:
        on_change: called with lists that changed.
        on_jobs: called when there is something in a list that was looked at.
    """

    def __init__(
        self,
        membership: Membership,
        loop: Loop,
        on_change: Callable[[Collection[str]], object],
        on_jobs: Callable[[], object],
    ) -> None:
        self.membership = membership
        self.loop = loop
        self.on_change = on_change
        self.on_jobs = on_jobs
        #: Until when it is not tried, since the server has refused it (monotonic s).
        self._refused_until = 0.0
        self._complained = False
        self._looker: Any = None
        self._hearer: Any = None
        self._fds: list[int] = []
        #: key -> list, of all that were looked at.
        self._lists: dict[bytes, str] = {}
        #: Empty when they were looked at last; a message comes when they change.
        self._tracked: set[str] = set()
        #: Looked at, answer to come; without those that have changed since.
        self._asked: set[str] = set()
        #: Who owes an answer, and since when (monotonic s).
        self._owes: dict[Any, float] = {}
        #: When all are looked at anew (monotonic s): a message may be lost with its connection.
        self._again_at = 0.0

    @property
    def allowed(self) -> bool:
        """False for a while after the server has refused it."""
        return monotonic() >= self._refused_until

    def look_at(self, lists: Collection[str]) -> None:
        """See that word comes of whatever is, or arrives, in ``lists``.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached.
        """
        if not self.allowed or not lists:
            return
        now = monotonic()
        if any(now - since > OVERDUE and not _answered(c) for c, since in self._owes.items()):
            logger.warning("No word of changed queue lists in time; both connections are replaced.")
            self.close()
        if not self._fds and not self._open():
            return
        if self._looker in self._owes:
            return
        if now >= self._again_at:
            self._again_at = now + BLOCK_TIMEOUT
            self._tracked.clear()
            self._send(self._hearer, "PING")  # a firewall forgets a connection that is silent
        new = [name for name in lists if name not in self._tracked]
        if new:
            keys = [self.membership.database.keys.queue(name) for name in new]
            self._lists.update(zip((key.encode() for key in keys), new, strict=True))
            self._asked = set(new)
            self._send(self._looker, "EXISTS", *keys)

    def _send(self, connection: Any, *command: Any) -> None:
        # A health check reads an answer, and would take what is owed for its own.
        connection.send_command(*command, check_health=False)
        self._owes.setdefault(connection, monotonic())

    def _open(self) -> bool:
        """Connect; False where the server does not allow it."""
        params = {**self.membership.home.params, "protocol": 2}
        self._hearer, self._looker = lone_connection(params), lone_connection(params)
        try:
            self._hearer.connect()
            self._looker.connect()
            number = self._ask(self._hearer, "CLIENT", "ID")
            self._ask(self._hearer, "SUBSCRIBE", CHANNEL)
            self._ask(self._looker, "CLIENT", "TRACKING", "ON", "REDIRECT", number)
        except ResponseError as exc:
            self.close()
            self._refused_until = monotonic() + TRY_AGAIN
            if not self._complained:
                self._complained = True
                logger.warning(
                    "The server does not tell of changes (%s): queue lists on which no connection "
                    "waits are looked at once a second. If that is forbidden to its user, see "
                    "CLIENT TRACKING among the permissions in docs/configuration.md.",
                    exc,
                )
            return False
        except BaseException:
            self.close()
            raise
        for connection, handler in ((self._hearer, self._hear), (self._looker, self._seen)):
            self._fds.append(connection._sock.fileno())
            self.loop.watch(self._fds[-1], handler)
        return True

    def _ask(self, connection: Any, *command: Any) -> Any:
        connection.send_command(*command, check_health=False)
        return connection.read_response()

    def _hear(self) -> bool:
        """Messages came, or the connection broke. Nothing is delivered here."""
        try:
            while True:
                kind, *rest = self._hearer.read_response()
                if kind == b"message":
                    self._changed(rest[1])
                else:
                    self._owes.pop(self._hearer, None)
                # More may have come with it, and the socket would not show it again.
                if not self._hearer.can_read(timeout=0):
                    return False
        except (RedisError, OSError):
            self.close()  # no claim was lost with it, and the next look tries another
            return False

    def _changed(self, keys: Collection[bytes] | None) -> None:
        """Some keys changed; without ``keys`` the whole database did."""
        known = self._lists if keys is None else self._lists.keys() & set(keys)
        names = {self._lists[key] for key in known}
        self._tracked -= names
        self._asked -= names
        self.on_change(names)

    def _seen(self) -> bool:
        """The lists were looked at, or the connection broke."""
        self._owes.pop(self._looker, None)
        try:
            found = self._looker.read_response()
        except (RedisError, OSError):
            self.close()
            return False
        if found:
            self.on_jobs()
        else:
            self._tracked |= self._asked
        self._asked = set()
        return False

    def close(self) -> None:
        """Close both connections."""
        for fd in self._fds:
            self.loop.unwatch(fd)
        for connection in (self._looker, self._hearer):
            if connection is not None:
                connection.disconnect()
        self._looker = self._hearer = None
        self._fds, self._owes = [], {}
        self._tracked, self._asked, self._again_at = set(), set(), 0.0


def _answered(connection: Any) -> bool:
    """Whether an answer has come, and nobody has read it: this thread was busy for long."""
    try:
        return bool(connection.can_read(timeout=0))
    except (RedisError, OSError):
        return False
