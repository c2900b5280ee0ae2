"""Pools of plain connections: one for all of a process that speak to one server, and how many
connections stay open in it. Plans of managed services are sold by their number."""

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

#: Seconds for which a connection stays open beside others that are enough meanwhile.
SURPLUS = 5.0
#: Each user has one at a time: kombu's limit, for a pool of each channel, would have them fail for
#: each other; and that of redis-py 8 is 100.
UNLIMITED = 2**31
#: Parameters in which connections may differ and be the same to those who use them.
ALIKE = {"max_connections", "driver_info", "lib_name"}


class SharedPool(ConnectionPool):
    """A pool that channels, the owner and the clients of a process share.

    It keeps as many connections open as were used at the same time of late. After a connection has
    failed, those that lie idle are connected anew before they are used: a firewall that has
    forgotten one says nothing of the others.
    """

    def __init__(self, **params: Any) -> None:
        super().__init__(**{**params, "max_connections": UNLIMITED})
        self._users: WeakSet[Any] = WeakSet()

    def reset(self) -> None:
        super().reset()
        # A signal handler may ask for a connection while this thread does; redis-py before 6 has a
        # lock that would never be free.
        self._lock = RLock()

    def enter(self, user: Any) -> None:
        """Keep connections open until this user leaves, too."""
        self._users.add(user)

    def leave(self, user: Any) -> None:
        """Close what lies idle if this was the last user. What is in use comes back later, and so
        does a user: the owner settles after its last channel is closed."""
        self._users.discard(user)
        if not self._users:
            self.disconnect(inuse_connections=False)

    def release(self, connection: Any) -> None:
        failed, connection.released_at = connection._sock is None, monotonic()
        super().release(connection)
        if failed:
            self.disconnect(inuse_connections=False)
        elif len(self._available_connections) > 1:
            self._close_surplus(connection.released_at)

    def _close_surplus(self, now: float) -> None:
        """Close what was not used of late: the last that came back is the next to be used."""
        with self._lock:
            idle = self._available_connections
            while len(idle) > 1 and now - idle[0].released_at >= SURPLUS:
                self._created_connections -= 1
                idle.pop(0).disconnect()


#: The pools of this process by what their connections have in common.
_pools: WeakValueDictionary[Hashable, SharedPool] = WeakValueDictionary()

if hasattr(os, "register_at_fork"):
    # A child has no part in its parent's: it would count that one's channels as its users.
    os.register_at_fork(after_in_child=_pools.clear)


def shared_pool(params: Params) -> SharedPool:
    """Return the pool of this process for connections with these parameters. Those that are not
    used alike (another timeout, password, or policy for retries) have another."""
    key = _key_of(params)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools.setdefault(key, SharedPool(**params))
    return pool


def _key_of(params: Params) -> Hashable:
    rows = {name: value for name, value in params.items() if name not in ALIKE}
    if isinstance(rows.get("slot"), Slot):  # its retries are those of any slot
        rows.pop("retry", None)
    # kombu names most parameters that have no value. Of TLS also a false one says what is meant: if
    # it were left out, who verifies the server would get a connection of who does not.
    said = {k: v for k, v in rows.items() if v or (v is not None and k.startswith("ssl_"))}
    return frozenset((name, _comparable(value)) for name, value in said.items())


def _comparable(value: Any) -> Hashable:
    """Return what is equal for two values that mean the same, made anew for each channel."""
    if isinstance(value, Slot):
        return value.key, value.seeds
    if isinstance(value, type):
        return getattr(value, "follows", value)
    if hasattr(value, "get_credentials"):
        # By the values where they compare: a secret's own text hides which secret it is.
        return type(value), frozenset(
            (name, _comparable(part)) for name, part in vars(value).items()
        )
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


class SharingClient(Redis):
    """A client that leaves its pool when it is closed. redis-py leaves a pool that it was given to
    the garbage collector: its connections stay open until that runs, hours in an idle process."""

    def __init__(self, pool: SharedPool) -> None:
        super().__init__(connection_pool=pool)
        self._pool = pool
        pool.enter(self)

    def close(self) -> None:
        super().close()
        self._pool.leave(self)


def shared_client(params: Params) -> SharingClient:
    """Return a client for a caller who closes it."""
    return SharingClient(shared_pool(params))
