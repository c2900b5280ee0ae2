"""The heart's connection, by which the server knows an owner, and the others that are its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from redis import Redis

from .config import Config
from .keys import Keys
from .registry import Registry, connection_id, run_id


class Heart:
    """One connection that nobody else uses, and what the registry is told of it.

    Arguments:
        connect: makes a client with one connection, to where the owner's server is now.
    """

    def __init__(self, connect: Callable[[], Redis], keys: Keys, config: Config) -> None:
        self._connect = connect
        self._keys = keys
        self._config = config
        #: Which run of the server the ids belong to; empty where they are of no use.
        self.run_id = ""
        #: Ids of the blocking connections: they are cut when the owner is reaped.
        self.blocking: set[int] = set()
        self._id = 0
        self._socket: object = None

    @cached_property
    def client(self) -> Redis:
        """The client; made again after ``move``."""
        return self._connect()

    @cached_property
    def registry(self) -> Registry:
        """The registry, by this connection."""
        return Registry(self.client, self._keys, self._config)

    def look(self) -> bool:
        """Learn the connection's id, once for each time it was opened.

        Returns:
            True when it took the place of another: a restart or a failover may have undone what
            we were told was done.
        """
        socket = getattr(self.client.connection, "_sock", None)
        if socket is not None and socket is self._socket:
            return False
        again = self._socket is not None
        self._id = connection_id(self.client)
        self.run_id = run_id(self.client) if self._id else ""
        self._socket = getattr(self.client.connection, "_sock", None)
        return again

    @property
    def connections(self) -> tuple[int, ...]:
        """Ids of all the owner's connections; none where the server does not tell them."""
        return tuple(sorted({self._id, *self.blocking})) if self._id else ()

    def move(self) -> None:
        """Connect anew, to another server."""
        for name in ("client", "registry"):
            self.__dict__.pop(name, None)
