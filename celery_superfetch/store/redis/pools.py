"""Connection pools: one for each server and process, instead of kombu's one for each channel, and
with few idle connections. Managed services sell plans by the number of connections, so idle ones
cost money.

A channel (``transport/frugal.py``) and the ``Owner`` (the object by which this process claims and
acks jobs) share the pool of their server (``shared_pool``). ``app/broker.py`` makes clients on it
for commands, for beat and for pool processes (``shared_client``), and so does the result backend
for clusters. Any thread may use a pool, and a signal handler may interrupt it.

The pools are in memory. If the process dies, the server closes the connections. A forked child
starts without pools.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

redis connection:
    know that a connection has failed: Connection._sock
    close connections that were not used for some seconds: ConnectionPool.reset()
        ConnectionPool._available_connections ConnectionPool._lock
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from threading import RLock
from time import monotonic
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from redis import ConnectionPool, Redis

from .connections import Params
from .slots import Slot

#: Seconds after which a connection that was not used is closed, if another one is idle as well.
SURPLUS_S = 5.0
#: A shared pool has no limit: each user takes one connection at a time. kombu's ``max_connections``
#: is meant for the pool of one channel: as a limit for all of them it would make calls fail. The
#: default of redis-py 8 is 100.
UNLIMITED_CONNECTIONS = 2**31
#: Parameters whose difference does not need another pool.
IGNORED_PARAMS = {"max_connections", "driver_info", "lib_name"}


class SharedPool(ConnectionPool):
    """A pool that channels, the ``Owner`` and the clients of a process share. Each of them is a
    *user*: it is registered by ``enter`` and unregistered by ``leave``.

    It keeps as many connections open as were used at the same time within the last seconds. When
    one has failed, all idle ones are closed, and connect again when they are used: if a firewall
    has dropped one, it has mostly dropped the others as well.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__(**{**params, "max_connections": UNLIMITED_CONNECTIONS})
        self._users: WeakSet[Any] = WeakSet()

    def reset(self) -> None:
        super().reset()
        # A signal handler may ask for a connection while this thread holds the lock. The lock of
        # redis-py before 6 is not reentrant: the process would hang.
        self._lock = RLock()

    def enter(self, user: Any) -> None:
        """Register a user: connections stay open until it leaves."""
        self._users.add(user)

    def leave(self, user: Any) -> None:
        """Unregister a user; if it was the last one, close the idle connections. The pool can still
        be used afterwards: an owner sends its last acks after its last channel has left."""
        self._users.discard(user)
        if not self._users:
            self.disconnect(inuse_connections=False)

    def release(self, connection: Any) -> None:
        """Take a connection back. If it was closed, it has failed: close all idle ones as well."""
        has_failed = connection._sock is None
        connection.released_at = monotonic()
        super().release(connection)
        if has_failed:
            self.disconnect(inuse_connections=False)
        elif len(self._available_connections) > 1:
            self._close_surplus(connection.released_at)

    def _close_surplus(self, now: float) -> None:
        """Close connections that were not used for ``SURPLUS_S`` seconds, all but the last one of
        the list, which is taken next. A closed one stays in the list, and connects again when it is
        taken."""
        with self._lock:
            for connection in self._available_connections[:-1]:
                if now - connection.released_at >= SURPLUS_S:
                    connection.disconnect()


#: The pools of this process by the parameters of their connections (``_key_of``).
_pools: WeakValueDictionary[Hashable, SharedPool] = WeakValueDictionary()

if hasattr(os, "register_at_fork"):
    # A forked child makes its own pools. In the pools that it has inherited, its parent's channels
    # would count as users, and connections would stay open for them.
    os.register_at_fork(after_in_child=_pools.clear)


def shared_pool(params: Params) -> SharedPool:
    """Return the pool of this process for connections with these parameters, one and the same for
    equal parameters. Another timeout, password or policy for retries means another pool."""
    key = _key_of(params)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, SharedPool(**params))
    return pool


def _key_of(params: Params) -> Hashable:
    parts = {name: value for name, value in params.items() if name not in IGNORED_PARAMS}
    if isinstance(parts.get("slot"), Slot):
        # ``following_params``, which makes parameters for clusters, makes another retry object each
        # time. All mean the same, but do not compare as equal.
        parts.pop("retry", None)
    # A parameter without a value is the same as none: kombu names most of them. An option of TLS
    # counts even if it is false: otherwise a user that verifies the server's certificate would get
    # a connection that does not.
    with_value = {k: v for k, v in parts.items() if v or (v is not None and k.startswith("ssl_"))}
    return frozenset((name, _comparable(value)) for name, value in with_value.items())


def _comparable(value: Any) -> Hashable:
    """Return a value that is equal for two objects of the same meaning: kombu makes new ones for
    each channel."""
    if isinstance(value, Slot):
        return value.key, value.seeds
    if isinstance(value, type):
        return getattr(value, "follows", value)
    if hasattr(value, "get_credentials"):
        # A provider of credentials is compared by its attributes, not by its repr: that hides the
        # password, and would be equal for two passwords.
        return type(value), frozenset(
            (name, _comparable(part)) for name, part in vars(value).items()
        )
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


class SharingClient(Redis):
    """A client that leaves its pool when it is closed. redis-py's client would not close a pool
    that it did not make: the connections would stay open until the garbage collector runs, after
    hours in an idle process."""

    def __init__(self, pool: SharedPool) -> None:
        super().__init__(connection_pool=pool)
        self._pool = pool
        pool.enter(self)

    def close(self) -> None:
        super().close()
        self._pool.leave(self)


def shared_client(params: Params) -> SharingClient:
    """Return a client on the shared pool; the caller closes it."""
    return SharingClient(shared_pool(params))
