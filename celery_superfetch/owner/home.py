"""Where an owner's database is; with a failover list that may change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import ConnectionPool, Redis

from ..model.config import Config
from ..store.database import Database
from ..store.registry import Registry
from ..store.wire.connections import Params, patient, place_of, without_retries

#: Seconds the server has to answer a heartbeat at least, however short the interval.
SHORTEST_WAIT = 1.0


class Home:
    """Where the database is now, for all that have to do with it.

    Arguments:
        params: arguments of ``redis.ConnectionPool``.
        elsewhere: the same for servers that may take its place.
    """

    def __init__(self, params: Params, elsewhere: Sequence[Params], config: Config) -> None:
        self.config = config
        self.params = _limited(params)
        self.elsewhere = elsewhere
        #: Everybody's but the heart's.
        self.client = Redis(connection_pool=self._pool())

    def _pool(self) -> ConnectionPool:
        most = self.params.get("max_connections")
        # Acks keep one for themselves.
        return ConnectionPool(**{**self.params, **({"max_connections": most + 1} if most else {})})

    def is_at(self, params: Params) -> bool:
        """Whether ``params`` lead where the database is."""
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Go elsewhere. Everybody has the client; what is under way fails by itself."""
        old, self.params = self.client.connection_pool, _limited(params)
        self.client.connection_pool = self._pool()
        old.disconnect(inuse_connections=False)

    def connect(self, params: Params | None = None) -> Redis:
        """A client with one connection: a full pool, or a reply that waits, must not stop a heart.

        It waits for the server until the next heartbeat at most: a half-open connection must not
        silence the owner for longer.
        """
        own = {**(self.params if params is None else _limited(params)), "max_connections": 2}
        longest = max(SHORTEST_WAIT, self.config.heartbeat_interval)
        for name in own.keys() & {"socket_timeout", "socket_connect_timeout"}:
            own[name] = min(own[name], longest)
        return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)

    @contextmanager
    def registry_at(self, params: Params) -> Iterator[Registry]:
        """The registry of a server to which the database may have moved.

        Raises:
            redis.exceptions.RedisError: it cannot be asked.
        """
        client = self.connect(params)
        try:
            yield Registry(Database(client, self.config))
        finally:
            client.close()
            client.connection_pool.disconnect()


def _limited(params: Params) -> dict[str, Any]:
    return patient(without_retries(params))
