"""Word of what arrives in queue lists: CLIENT TRACKING tells whoever has looked at them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from time import monotonic

from redis.exceptions import RedisError

from .database import Database, Structure
from .wire.clients import LoneConnection
from .wire.connections import Params


class Arrivals(Structure):
    """One connection looks at queue lists, the other hears when they change: RESP2 needs two."""

    def __init__(self, database: Database, params: Params) -> None:
        super().__init__(database)
        params = {**params, "protocol": 2}
        self.hearer, self.looker = LoneConnection(params), LoneConnection(params)
        self._lists: dict[bytes, str] = {}  # key -> list, of all that were looked at
        #: Who owes an answer, and since when (monotonic s).
        self._owes: dict[LoneConnection, float] = {}
        try:
            self.fds = self.hearer.connect(), self.looker.connect()
            number = self.hearer.ask("CLIENT", "ID")
            self.hearer.ask("SUBSCRIBE", "__redis__:invalidate")
            self.looker.ask("CLIENT", "TRACKING", "ON", "REDIRECT", number)
        except BaseException:
            self.close()
            raise

    def look(self, lists: Collection[str]) -> None:
        """Ask whether something is in any of the lists; word comes of what changes from here on."""
        keys = [self.keys.queue(name) for name in lists]
        self._lists.update(zip((key.encode() for key in keys), lists, strict=True))
        self._send(self.looker, "EXISTS", *keys)

    def keep_open(self) -> None:
        """A firewall forgets a connection that is silent."""
        self._send(self.hearer, "PING")

    def _send(self, connection: LoneConnection, *command: str) -> None:
        connection.send(*command)
        self._owes.setdefault(connection, monotonic())

    @property
    def looking(self) -> bool:
        return self.looker in self._owes

    def overdue(self, limit: float) -> bool:
        """Whether an answer has not come in so many seconds."""
        late = [c for c, since in self._owes.items() if monotonic() - since > limit]
        try:  # one that has come was not read yet: this thread was busy for long
            return not all(connection.can_read() for connection in late)
        except (RedisError, OSError):
            return True

    def found(self) -> bool:
        """Read the answer to a look."""
        self._owes.pop(self.looker, None)
        return bool(self.looker.read())

    def changed(self) -> Iterator[set[str]]:
        """Lists that have changed, for each message that came."""
        while True:
            kind, *rest = self.hearer.read()
            if kind == b"message":
                # Without keys the whole database did.
                keys = self._lists.keys() if rest[1] is None else self._lists.keys() & set(rest[1])
                yield {self._lists[key] for key in keys}
            else:
                self._owes.pop(self.hearer, None)
            # The socket would not show again what came with it.
            if not self.hearer.can_read():
                return

    def close(self) -> None:
        self.looker.disconnect()
        self.hearer.disconnect()
