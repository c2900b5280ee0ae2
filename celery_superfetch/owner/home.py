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
    """Where the database is now, for all that have to do with it; arguments as ``Membership``."""

    def __init__(self, params: Params, elsewhere: Sequence[Params], config: Config) -> None:
        self.params = _limited(params)
        self.elsewhere = elsewhere
        self.config = config
        self.client = Redis(connection_pool=self._pool())  # everybody's but the heart's

    def _pool(self) -> ConnectionPool:
        own = dict(self.params)
        if own.get("max_connections"):  # acks keep one for themselves
            own["max_connections"] += 1
        return ConnectionPool(**own)

    def is_at(self, params: Params) -> bool:
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Go elsewhere. Everybody has the client; what is under way fails by itself."""
        old, self.params = self.client.connection_pool, _limited(params)
        self.client.connection_pool = self._pool()
        old.disconnect(inuse_connections=False)

    def connect(self, params: Params) -> Redis:
        """A client with one connection: a full pool, or a reply that waits, must not stop a heart.

        Nor must a half-open connection: it waits for the server until the next heartbeat at most.
        """
        own = {**_limited(params), "max_connections": 2}
        longest = max(SHORTEST_WAIT, self.config.heartbeat_interval)
        for name in own.keys() & {"socket_timeout", "socket_connect_timeout"}:
            own[name] = min(own[name], longest)
        return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)

    @contextmanager
    def registry_at(self, params: Params) -> Iterator[Registry]:
        client = self.connect(params)
        try:
            yield Registry(Database(client, self.config))
        finally:
            client.connection_pool.disconnect()


def _limited(params: Params) -> dict[str, Any]:
    return patient(without_retries(params))
