"""The slot of a cluster in which all keys of an app lie, and the way to the node that serves it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from ...errors import UnsupportedBroker

#: A key, or a prefix, with the name in braces by which a cluster chooses its slot.
TAGGED = re.compile(r"[^{]*\{[^}]+\}")

#: Seconds for which a connection looks for the node that serves its slot: what a planned failover
#: takes, and with the four tries of a Celery producer longer than the election after a crash.
PATIENCE = 5.0
PAUSE = 0.05  # seconds between two tries
#: Seconds that a node has to accept a connection: there are others, and one cut off says nothing.
REACHED_WITHIN = 2.0

NO_TAG = (
    "the broker is a cluster, which keeps all keys of an app in one place only under a prefix with "
    'a name in braces. Set broker_transport_options = {"global_keyprefix": "{shop}:"}, with a name '
    "of your own, for producers and workers alike"
)

Address = tuple[str, int]


def address_of(url: str, port: int = 6379) -> Address:
    at = urlsplit(url)
    return at.hostname or "localhost", at.port or port


class Slot:
    """Who serves the slot of ``key``, as far as this process knows; what is no cluster is connected
    to as it was given. Any node will do to begin with: each that is reached names the others."""

    def __init__(self, key: str, seeds: Iterable[Address]) -> None:
        self.key = key
        self.seeds = frozenset(seeds)
        self.clustered = False
        self._primary: Address | None = None
        self._silent: Address | None = None  # who did not answer last; others come first
        self._nodes: list[Address] = []

    def reach(self, connection: Any, connect: Callable[[], None]) -> None:
        """Connect ``connection`` to the node that serves the slot; ConnectionError: none does, or
        the slot is being moved all the time, for PATIENCE seconds or the connection's own limit.
        Nothing was done of what was to be asked."""
        own: Address = connection.host, connection.port
        deadline = time.monotonic() + _limit(connection)
        while True:
            try:
                return self._try_all(connection, connect, own)
            except (AuthenticationError, AuthorizationError):
                raise
            except (RedisConnectionError, RedisTimeout):
                if not self.clustered or time.monotonic() >= deadline:
                    raise
            time.sleep(PAUSE)

    def _try_all(self, connection: Any, connect: Callable[[], None], own: Address) -> None:
        ways = [own]
        if self.clustered:
            ways = [*filter(None, [self._primary]), own, *self.seeds, *self._nodes]
            ways.sort(key=lambda one: one == self._silent)
            limit = connection.socket_connect_timeout or REACHED_WITHIN
            connection.socket_connect_timeout = min(limit, REACHED_WITHIN)
        tried: set[Address] = set()
        error: Exception | None = None
        while ways:
            address = ways.pop(0)
            if address in tried:
                continue
            tried.add(address)
            connection.host, connection.port = address
            try:
                return connect()  # which comes to ``greet``
            except MovedError as exc:
                self.clustered = True
                ways.insert(0, (exc.host or address[0], exc.port))
                error = exc
            except (AuthenticationError, AuthorizationError):
                raise
            except (RedisConnectionError, RedisTimeout, ClusterDownError) as exc:
                error, self._silent = exc, address
        if not self.clustered and error is not None:
            raise error
        raise RedisConnectionError(
            f"no node of the cluster that can be reached serves the slot of {self.key} ({error})"
        ) from error

    def greet(self, connection: Any) -> None:
        """Ask the node that was reached who the others are, and whether it serves the slot; raises
        MovedError or ClusterDownError where it does not."""
        connection.on_connect()
        self._learn(connection)
        deadline = time.monotonic() + _limit(connection)
        while True:
            try:
                _reply(connection, "EXISTS", self.key)
            except MovedError:
                raise
            except MasterDownError as exc:
                raise orphaned(exc) from exc
            except AskError as exc:  # it leaves this node, which has it to the end of the move
                if time.monotonic() >= deadline:
                    raise RedisConnectionError(f"the slot of {self.key} is being moved") from exc
                time.sleep(PAUSE)
                continue
            except NoPermissionError:  # refused by name where a worker starts
                pass
            break
        self._primary = connection.host, connection.port

    def _learn(self, connection: Any) -> None:
        try:
            told = _reply(connection, "CLUSTER", "SLOTS")
        except ResponseError:  # it is no cluster, or we may not ask: MOVED tells as well
            return
        self.clustered = True
        here = connection.host
        found = (node for _, _, *nodes in told for node in nodes)
        self._nodes = list(dict.fromkeys((_host(node[0]) or here, int(node[1])) for node in found))


def orphaned(exc: MasterDownError) -> RedisConnectionError:
    return RedisConnectionError(
        "the server is a replica that has lost its primary, and serves no stale data: it did "
        f"nothing of what was asked ({exc}); looking for the primary"
    )


def _limit(connection: Any) -> float:
    return float(min(PATIENCE, connection.socket_timeout or PATIENCE))


def _reply(connection: Any, *command: Any) -> Any:
    connection.send_command(*command, check_health=False)
    return connection.reply()


def _host(told: Any) -> str:
    """A node's address; empty where it goes by the one by which it was asked."""
    host = told.decode() if isinstance(told, bytes) else str(told or "")
    return "" if host == "?" else host


_slots: dict[tuple[str, frozenset[Address]], Slot] = {}


def slot_of(prefix: str, seeds: Iterable[Address]) -> Slot | None:
    """The slot of a prefix, for all connections of this process; None without a name in braces."""
    if not TAGGED.match(prefix):
        return None
    slot = Slot(f"{prefix}superfetch:never", seeds)  # as ``Keys.never``, of the room above
    return _slots.setdefault((slot.key, slot.seeds), slot)


def whereabouts(client: Redis, prefixes: Iterable[str]) -> list[dict[str, Any]]:
    """Slot and node (host:port, or None) of each prefix; UnsupportedBroker: it has none."""
    if untagged := [prefix for prefix in prefixes if not TAGGED.match(prefix)]:
        raise UnsupportedBroker(f"prefix {untagged[0]!r} has no name in braces, as {{shop}}: has")
    try:
        served: Any = client.execute_command("CLUSTER", "SLOTS")
    except ResponseError as exc:
        raise UnsupportedBroker(f"the broker does not say who serves which slot: {exc}") from exc
    found: list[dict[str, Any]] = []
    for prefix in prefixes:
        slot = key_slot(prefix.encode())
        places = (primary for first, last, primary, *_ in served if first <= slot <= last)
        node = next((f"{_host(place[0])}:{place[1]}" for place in places), None)
        found.append({"prefix": prefix, "slot": slot, "node": node})
    return found
