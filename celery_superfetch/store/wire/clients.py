"""Connections as the server knows them, by their ids: in another run of it these are strangers'."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from .connections import NotServed, Params
from .scripts import CHECKOUT, asked
from .server import info

#: Socket -> the id of its connection, and the run of the server there.
_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()


class LoneConnection:
    """A connection of no pool: whoever watches its socket reads what comes, or a ``RedisError``."""

    def __init__(self, params: Params) -> None:
        own = {name: value for name, value in params.items() if name != "max_connections"}
        self._connection: Any = own.pop("connection_class", Connection)(**own)
        #: Its id at that run of the server; 0: it can be neither unblocked nor cut, only awaited.
        self.id = 0
        self.run_id = ""
        self.waits_since = 0.0  # for an answer (monotonic s); 0: it waits for none

    def connect(self) -> int:
        """Returns the file descriptor to watch."""
        self._connection.connect()
        return int(self._connection._sock.fileno())

    def learn_id(self) -> None:
        self.id, self.run_id = known_as(self._connection)

    @property
    def connected(self) -> bool:
        return self._connection._sock is not None

    @property
    def closed_while_idle(self) -> bool:
        return not self.connected or closed_while_idle(self._connection)

    def send(self, *command: Any) -> None:
        now = monotonic()
        # A health check reads a reply, and would take what is owed for its own.
        self._connection.send_command(*command, check_health=False)
        self.waits_since = self.waits_since or now

    def read(self) -> Any:
        self.waits_since = 0.0
        return self._connection.read_response()

    def overdue(self, limit: float) -> bool:
        """Whether it has waited for so many seconds, and nothing has come."""
        try:  # what has come was not read yet where this thread was busy for long
            late = self.waits_since and monotonic() - self.waits_since > limit
            return bool(late) and not self.can_read()
        except (RedisError, OSError):
            return True

    def ask(self, *command: Any) -> Any:
        self.send(*command)
        return self.read()

    def can_read(self, timeout: float = 0.0) -> bool:
        return bool(self._connection.can_read(timeout=timeout))

    def disconnect(self) -> None:
        self.waits_since = 0.0
        self._connection.disconnect()


def closed_while_idle(connection: Any) -> bool:
    """Whether a connected connection, of which no reply is expected, is useless: the server, or a
    proxy, closed it, or it has bytes for which nobody asked."""
    try:
        return bool(connection.can_read(timeout=0))
    except (RedisError, OSError):
        return True


def run_id(client: Redis) -> str:
    """Which run of the server this is; empty where INFO is forbidden or lacks it."""
    return str(info(client, "server").get("run_id", ""))


def known_as(connection: Any) -> tuple[int, str]:
    """The id of a connection, at which run of the server; 0 and an empty one where nobody tells.
    Asked once; a connection that was lost is opened again."""
    if connection._sock not in _known:
        number, reply = asked(connection, ("CLIENT", "ID"), ("INFO", "server"))
        match = isinstance(reply, bytes) and re.search(rb"^run_id:(\w+)", reply, re.MULTILINE)
        run = match[1].decode() if match else ""
        _known[connection._sock] = number if run and isinstance(number, int) else 0, run
    return _known[connection._sock]


class Home:
    """The server that hears of this process: what another one answers is not believed. Two may be
    primaries, where one wakes, or is heard again, after another was elected."""

    run_id = ""  # which run of it; empty: nobody knows yet, or may
    contested = False  # others have met another: its heart is to ask again where the primary is

    def __init__(self) -> None:
        self.wake: Callable[[], object] = bool  # the heart, to do so at once

    def greet(self, connection: Any) -> None:
        connection.run_id = known_as(connection)[1]
        self.refuse_stranger(connection)

    def refuse_stranger(self, connection: Any) -> None:
        run, here, slot = connection.run_id, self.run_id, connection.slot
        # Behind a proxy each connection may lead to another, and none is the wrong one.
        proxied = not connection.replaceable or (slot is not None and slot.one_node)
        if proxied or run == here or not (run and here):
            return
        connection.disconnect()
        self.contested = True
        self.wake()
        raise NotServed(
            "this connection led to another primary than the heart of this process: what that has "
            "answered is not believed, nor what it has done; looking for the primary"
        )


def cut(client: Redis, run_id: str, ids: Sequence[int]) -> bool:
    """CLIENT KILL, as far as that is allowed; False: their ids may be strangers' by now."""
    return _to_connections(client, run_id, ("KILL", "ID"), ids) is not None


def unblock(client: Redis, connections: Sequence[LoneConnection]) -> bool:
    """CLIENT UNBLOCK those that wait in a command, so that their replies can be read; False: they
    come when they come. RedisError: a connection broke."""
    if any(
        not connection.id or connection.run_id != connections[0].run_id
        for connection in connections
    ):
        return False
    # To ask redis-py would be to connect anew.
    if not all(connection.connected for connection in connections):
        raise RedisConnectionError("a blocking connection broke")
    deadline, pending = monotonic() + 1.0, list(connections)
    while pending:
        run, ids = pending[0].run_id, [connection.id for connection in pending]
        replies = _to_connections(client, run, ["UNBLOCK"], ids)
        if replies is None or monotonic() > deadline or not {0, 1}.issuperset(replies):
            return False
        # 0: it was answered already, or the server has not come to read it yet: asked again, since
        # to wait for its reply would be to wait until its block ends.
        answers = zip(pending, replies, strict=True)
        pending = [
            connection for connection, reply in answers if not (reply or connection.can_read(0.005))
        ]
    return True


def _to_connections(
    client: Redis, run_id: str, command: Sequence[str], ids: Sequence[int]
) -> list[Any] | None:
    """The replies to a sub-command of CLIENT, errors among them; None where nobody can tell whether
    these ids are of ``run_id`` still: after a restart, or a failover behind one address."""
    pool = client.connection_pool
    connection = pool.get_connection(*CHECKOUT)
    try:
        if not run_id or known_as(connection)[1] != run_id:
            return None
        return asked(connection, *(("CLIENT", *command, id) for id in ids))
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
