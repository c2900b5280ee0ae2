"""Which server of a failover list is a copy of ours: the one that knows our last heartbeat."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from redis import ConnectionPool, Redis
from redis.exceptions import RedisError

from .config import Config
from .facts import Facts
from .heartbeats import heart_client
from .keys import Keys
from .places import Params
from .registry import Registry

logger = logging.getLogger(__name__)


def knows(params: Params, keys: Keys, owner: str) -> bool:
    """Whether a server has ever heard of ``owner``.

    Replication keeps the order of writes: one that has not has none of its claims either.

    Raises:
        redis.exceptions.RedisError: it cannot be asked.
    """
    client = Redis(connection_pool=ConnectionPool(**params))
    try:
        return bool(client.exists(keys.facts(owner)))
    finally:
        client.close()
        client.connection_pool.disconnect()


def promoted(
    candidates: Sequence[Params], config: Config, keys: Keys, facts: Facts, heard: Collection[int]
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
                score = client.zscore(keys.owners, facts.owner)
                if score is not None and int(score) in heard:
                    Registry(client, keys, config).heartbeat(facts, 0, {})
                    return params
            finally:
                client.close()
                client.connection_pool.disconnect()
        except RedisError as exc:
            logger.debug("Not the primary: %s", exc)
    return None
