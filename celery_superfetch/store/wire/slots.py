"""The slot of a cluster in which all keys of an app lie, and the way to the node that serves it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

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

#: A key, or a prefix, with the name in braces by which a cluster chooses its slot.
TAGGED = re.compile(r"[^{]*\{[^}]+\}")

#: Seconds for which a connection looks for its primary: what a planned failover takes, and with the
#: four tries of a Celery producer longer than the election after a crash.
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
        self.one_node = False  # is all that it shows, which may be a proxy
        self._primary: Address | None = None
        self._silent: Address | None = None  # who did not answer last; others come first
        self._nodes: list[Address] = []

    def reach(self, connection: Any, connect: Callable[[], None]) -> None:
        """Connect ``connection`` to the node that serves the slot; ConnectionError: none does, or
        the slot is being moved all the time. Nothing was done of what was to be asked."""
        own: Address = connection.host, connection.port
        ways = [own]
        if self.clustered:
            ways = [*filter(None, [self._primary]), own, *self.seeds, *self._nodes]
            ways.sort(key=lambda way: way == self._silent)
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
        self._learn(connection)
        deadline = monotonic() + patience_of(connection)
        while True:
            try:
                reply_to(connection, "EXISTS", self.key)
            except MovedError:
                raise
            except MasterDownError as exc:
                raise orphaned(exc) from exc
            except AskError as exc:  # it leaves this node, which has it to the end of the move
                if monotonic() >= deadline:
                    raise RedisConnectionError(f"the slot of {self.key} is being moved") from exc
                sleep(PAUSE)
                continue
            except NoPermissionError:  # refused by name where a worker starts
                pass
            break
        self._primary = connection.host, connection.port

    def _learn(self, connection: Any) -> None:
        try:
            reply = reply_to(connection, "CLUSTER", "SLOTS")
        except NoPermissionError:  # MOVED tells who serves it, too
            with suppress(ResponseError):
                reply = str(reply_to(connection, "INFO", "cluster"))
                self.clustered |= "cluster_enabled:1" in reply
            return
        except ResponseError:  # it is no cluster
            return
        self.clustered = True
        here = connection.host
        peers = (node for _, _, *nodes in reply for node in nodes)
        self._nodes = list(dict.fromkeys((_host(node[0]) or here, int(node[1])) for node in peers))
        self.one_node = len(self._nodes) == 1


def orphaned(exc: MasterDownError) -> RedisConnectionError:
    return RedisConnectionError(
        "the server is a replica that has lost its primary, and serves no stale data: it did "
        f"nothing of what was asked ({exc}); looking for the primary"
    )


def patience_of(connection: Any) -> float:
    return float(min(PATIENCE, connection.socket_timeout or PATIENCE))


def reply_to(connection: Any, *command: Any) -> Any:
    connection.send_command(*command, check_health=False)
    return connection.reply()


def _host(name: Any) -> str:
    """A node's address; empty where it goes by the one by which it was asked."""
    host = name.decode() if isinstance(name, bytes) else str(name or "")
    return "" if host == "?" else host


_slots: dict[tuple[str, frozenset[Address]], Slot] = {}


def slot_of(prefix: str, seeds: Iterable[Address]) -> Slot | None:
    """The slot of a prefix, for all connections of this process; None without a name in braces."""
    if not TAGGED.match(prefix):
        return None
    slot = Slot(f"{prefix}superfetch:never", seeds)  # as ``Keys.never``, of the room above
    return _slots.setdefault((slot.key, slot.seeds), slot)
