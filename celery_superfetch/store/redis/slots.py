"""The hash slot of a Redis Cluster that has all keys of an app, and the search for its node.

Each process has one ``Slot`` for each prefix with a hash tag (``slot_of``), and all of its
connections share it. The connection class in ``connections.py`` calls ``reach`` when it connects,
and ``greet`` as soon as it is connected, in any thread. ``transport/channel.py``, ``urls.py`` and
the result backend for clusters call ``slot_of``.

It only reads from the server, and what it learns is in memory: if the process dies, nothing has to
be repaired.
"""

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

#: A key, or a prefix, with a hash tag: a name in braces, by which a cluster chooses the slot.
HASH_TAGGED = re.compile(r"[^{]*\{[^}]+\}")

#: Seconds for which a connect looks for the primary. A planned failover takes as long. A Celery
#: producer tries to connect four times: these 20 s outlast an election after a crash.
SEARCH_TIMEOUT_S = 5.0
SEARCH_PAUSE_S = 0.05  # seconds between two tries
#: Seconds that a node has to accept a connection. Then the next node is tried: a node that the
#: network has cut off would not answer at all.
NODE_TIMEOUT_S = 2.0

NO_TAG = (
    "the broker is a cluster, and the app's keys have no hash tag, so they would be on several "
    'nodes. Set broker_transport_options = {"global_keyprefix": "{shop}:"}, with a name of your '
    "own in braces, for producers and workers alike"
)

Address = tuple[str, int]


def address_of(url: str, port: int = 6379) -> Address:
    """Return host and port of a URL; ``port``: if it names none."""
    at = urlsplit(url)
    return at.hostname or "localhost", at.port or port


class Slot:
    """The slot of ``key``, and what this process knows of the nodes that may serve it.

    ``seeds`` are the addresses that the user named: one that answers is enough, since each node
    names all others. A prefix with a hash tag may also be used without a cluster: then connections
    go where their parameters say.
    """

    def __init__(self, key: str, seeds: Iterable[Address]) -> None:
        self.key = key
        self.seeds = frozenset(seeds)
        self.clustered = False  # whether the server is a cluster
        #: The cluster names only one node. That may be a proxy in front of all nodes.
        self.one_node = False
        self._primary: Address | None = None  # the node that served the slot last
        self._unreachable: Address | None = None  # the node that failed last; it is tried last
        self._nodes: list[Address] = []  # all nodes, as one of them named them

    def reach(self, connection: Any, connect: Callable[[], None]) -> None:
        """Connect ``connection`` to the node that serves the slot: try each known address, and
        those to which MOVED leads, each of them once. The connection's ``host``, ``port`` and
        ``socket_connect_timeout`` change by this. ``connect``: redis-py's, which calls ``greet``.

        Raises:
            ConnectionError: no node that can be reached serves the slot, or the slot was being
                moved during the whole time that ``patience_of`` allows. No command was sent.
        """
        own_address: Address = connection.host, connection.port
        addresses = [own_address]
        if self.clustered:
            addresses = [*filter(None, [self._primary]), own_address, *self.seeds, *self._nodes]
            addresses.sort(key=lambda address: address == self._unreachable)
            limit = connection.socket_connect_timeout or NODE_TIMEOUT_S
            connection.socket_connect_timeout = min(limit, NODE_TIMEOUT_S)
        tried: set[Address] = set()
        error: Exception | None = None
        while addresses:
            address = addresses.pop(0)
            if address in tried:
                continue
            tried.add(address)
            connection.host, connection.port = address
            try:
                return connect()
            except MovedError as exc:
                self.clustered = True
                addresses.insert(0, (exc.host or address[0], exc.port))
                error = exc
            except (AuthenticationError, AuthorizationError):
                raise
            except (RedisConnectionError, RedisTimeout, ClusterDownError) as exc:
                error, self._unreachable = exc, address
        if not self.clustered and error is not None:
            raise error
        raise RedisConnectionError(
            f"no reachable node of the cluster serves the slot of {self.key} ({error})"
        ) from error

    def greet(self, connection: Any) -> None:
        """Check a node that was reached: ask it for the other nodes, and whether it serves the
        slot. Raise MovedError or ClusterDownError if it does not."""
        self._learn(connection)
        deadline = monotonic() + patience_of(connection)
        while True:
            try:
                # The key never exists: only a node that serves its slot answers without an error.
                reply_to(connection, "EXISTS", self.key)
            except MovedError:
                raise
            except MasterDownError as exc:
                raise orphaned(exc) from exc
            except AskError as exc:
                # The slot is being moved to another node. Until the move ends, this node serves
                # only commands whose keys it still has. A script names a key that never exists,
                # so it would be refused. A wait until the end of the move is all that helps.
                if monotonic() >= deadline:
                    raise RedisConnectionError(f"the slot of {self.key} is being moved") from exc
                sleep(SEARCH_PAUSE_S)
                continue
            except NoPermissionError:
                pass  # a worker's start names the missing permission
            break
        self._primary = connection.host, connection.port

    def _learn(self, connection: Any) -> None:
        """Find out whether the server is a cluster, and its nodes."""
        try:
            reply = reply_to(connection, "CLUSTER", "SLOTS")
        except NoPermissionError:
            # The node that serves the slot is found by MOVED alone.
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
    """Return the error to raise for a replica that has lost its primary."""
    return RedisConnectionError(
        "the server is a replica that has lost its primary: the command was not carried out "
        f"({exc}); looking for the primary"
    )


def patience_of(connection: Any) -> float:
    """Return for how many seconds a connection looks for the primary: ``SEARCH_TIMEOUT_S``, or its
    own timeout if that is shorter."""
    return float(min(SEARCH_TIMEOUT_S, connection.socket_timeout or SEARCH_TIMEOUT_S))


def reply_to(connection: Any, *command: Any) -> Any:
    """Send a command while the connection is being made; return the reply, or raise the server's
    error as redis-py does. ``reply`` is a method of ``connections.following``."""
    connection.send_command(*command, check_health=False)
    return connection.reply()


def _host(name: Any) -> str:
    """Return a node's host in CLUSTER SLOTS; empty if it has none there: then its host is the one
    to which the connection was made."""
    host = name.decode() if isinstance(name, bytes) else str(name or "")
    return "" if host == "?" else host


_slots: dict[tuple[str, frozenset[Address]], Slot] = {}


def slot_of(prefix: str, seeds: Iterable[Address]) -> Slot | None:
    """Return the slot of a prefix, one and the same for all connections of this process; None if
    the prefix has no hash tag."""
    if not HASH_TAGGED.match(prefix):
        return None
    # The name is that of ``Keys.never`` in ``store/keys.py``. It is not imported: ``store/redis``
    # must not import from ``store/``.
    slot = Slot(f"{prefix}superfetch:never", seeds)
    return _slots.setdefault((slot.key, slot.seeds), slot)
