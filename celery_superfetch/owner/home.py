"""Where an owner's database is, and which server of a failover list took its server's place."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from redis import ConnectionPool, Redis
from redis.exceptions import RedisError

from ..model.config import Config
from ..model.facts import Facts
from ..store.database import Database
from ..store.registry import Registry
from ..store.wire.connections import Params, patient, place_of, without_retries

logger = logging.getLogger(__name__)

#: Seconds the server has to answer a heartbeat at least, however short the interval.
SHORTEST_WAIT = 1.0


class Home:
    """Where the database is now, for all that have to do with it.

    Arguments:
        params: arguments of ``redis.ConnectionPool``.
        elsewhere: the same for servers that may take its place.
    """

    def __init__(self, params: Params, elsewhere: Sequence[Params] = ()) -> None:
        self.params: Params = patient(without_retries(params))
        self.elsewhere = [patient(without_retries(other)) for other in elsewhere]
        #: Everybody's but the heart's.
        self.client = Redis(connection_pool=self._pool())

    def _pool(self) -> ConnectionPool:
        most = self.params.get("max_connections")
        # Acks keep one for themselves.
        more = {"max_connections": most + 1} if most else {}
        return ConnectionPool(**{**self.params, **more})

    def is_at(self, params: Params) -> bool:
        """Whether ``params`` lead where the database is."""
        return place_of(params) == place_of(self.params)

    def move(self, params: Params) -> None:
        """Go elsewhere. Everybody has the client; what is under way fails by itself."""
        old, self.params = self.client.connection_pool, patient(without_retries(params))
        self.client.connection_pool = self._pool()
        old.disconnect(inuse_connections=False)


def knows(params: Params, config: Config, owner: str) -> bool:
    """Whether a server has ever heard of ``owner``.

    Replication keeps the order of writes: one that has not has none of its claims either.

    Raises:
        redis.exceptions.RedisError: it cannot be asked.
    """
    client = Redis(connection_pool=ConnectionPool(**params))
    try:
        return Registry(Database(client, config)).knows(owner)
    finally:
        client.close()
        client.connection_pool.disconnect()


def promoted(
    candidates: Sequence[Params], config: Config, facts: Facts, heard: Collection[int]
) -> Params | None:
    """The candidate that took our server's place, or None.

    It knows one of our last heartbeats, and takes one. A server of its own, or the primary of
    last week come back with the data of last week, knows none; a replica takes none.

    Arguments:
        heard: server ms of our last heartbeats.
    """
    for params in candidates:
        try:
            client = heart_client(params, config.heartbeat_interval)
            try:
                registry = Registry(Database(client, config))
                if registry.last_heard(facts.owner) in heard:
                    registry.heartbeat(facts, 0, {})
                    return params
            finally:
                client.close()
                client.connection_pool.disconnect()
        except RedisError as exc:
            logger.debug("Not the primary: %s", exc)
    return None


def heart_client(params: Mapping[str, Any], heartbeat_interval: float) -> Redis:
    """A client with one connection: a full pool, or a reply that waits, must not stop a heart.

    Arguments:
        params: arguments of ``redis.ConnectionPool``, with limits to its waits.
        heartbeat_interval: seconds, and the longest wait for the server: a half-open connection
            must not silence the owner for longer.
    """
    own = {**params, "max_connections": 2}
    longest = max(SHORTEST_WAIT, heartbeat_interval)
    for name in ("socket_timeout", "socket_connect_timeout"):
        if name in own:
            own[name] = min(own[name], longest)
    return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)
