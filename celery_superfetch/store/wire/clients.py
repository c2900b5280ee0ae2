"""Connections as the server knows them, by their ids: in another run of it these are strangers'."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from .connections import NotServed, Params, is_ours
from .scripts import CHECKOUT, asked
from .server import info

#: Socket -> the id of its connection, and the run of the server there.
_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
#: Socket that asks -> ids of connections of this process that it may unblock; found out once.
_read_ids: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

RECOGNISED_IDS = 64  # that are looked up of one owner at most: it has fewer connections


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
    def address(self) -> str:
        """Its own end, as CLIENT LIST writes it; a proxy has another one."""
        sock = self._connection._sock
        host, port, *_ = (sock and sock.getsockname()) or ("", 0)  # else a path, or it was closed
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

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


def listed(reply: bytes) -> dict[int, dict[str, str]]:
    """Return the rows of a reply of CLIENT LIST by the ids of the connections."""
    lines = reply.decode(errors="replace").splitlines()
    rows = [
        dict(field.split("=", 1) for field in line.split(" ") if "=" in field) for line in lines
    ]
    return {int(row["id"]): row for row in rows}


def recognised(
    connection: Any, ids: Sequence[int], addresses: Mapping[int, str] | None = None
) -> dict[int, bool] | None:
    """Return which of ``ids`` the server lists, and whether each is a connection of this package:
    of its name (or of this process, by its own ``addresses``), and of the user and database of
    ``connection``, which asks; None where the list is forbidden. If an id were believed, a forged
    record, or one of several proxies that share a run id and not their ids, would have a stranger's
    connection cut."""
    own, _ = known_as(connection)
    asked_for = [id for id in ids if 0 < id < 2**63 and id != own][:RECOGNISED_IDS]
    if not own or not asked_for:
        return {}
    [reply] = asked(connection, ("CLIENT", "LIST", "ID", own, *asked_for))
    if not isinstance(reply, bytes):
        return None
    rows = listed(reply)
    asker = rows.pop(own, {})
    return {
        id: (is_ours(row) or row.get("addr") == (addresses or {}).get(id))
        and all(row.get(field) == asker.get(field) for field in ("user", "db"))
        for id, row in rows.items()
    }


def cut(
    client: Redis, run_id: str, ids: Sequence[int], addresses: Mapping[int, str] | None = None
) -> bool:
    """CLIENT KILL those that are connections of this package, or have these ``addresses`` of this
    process, as far as that is allowed. False: one of them may be open still, since the server has
    restarted, lists it as a stranger's, or forbids to list or to kill it."""

    def kill(connection: Any) -> list[Any]:
        is_ours_by_id = recognised(connection, ids, addresses)
        if is_ours_by_id is None:
            return [None]
        cut_ids = [id for id, is_ours in is_ours_by_id.items() if is_ours]
        replies = asked(connection, *(("CLIENT", "KILL", "ID", id) for id in cut_ids))
        return [*replies, *(None for is_ours in is_ours_by_id.values() if not is_ours)]

    replies = _at_run(client, run_id, kill)
    return replies is not None and all(isinstance(reply, int) for reply in replies)


def addresses(client: Redis, run_id: str, ids: Sequence[int]) -> list[str]:
    """Return the addresses that the server has of those that are connections of this package."""

    def ask(connection: Any) -> list[Any]:
        is_ours_by_id = recognised(connection, ids) or {}
        own_ids = [id for id, is_ours in is_ours_by_id.items() if is_ours]
        return asked(connection, ("CLIENT", "LIST", "ID", *own_ids)) if own_ids else []

    replies = _at_run(client, run_id, ask) or ()
    lists = [listed(reply) for reply in replies if isinstance(reply, bytes)]
    return [row.get("addr", "") for rows in lists for row in rows.values()]


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

    def send(connection: Any) -> list[Any]:
        listed_ids = _listed_reads(connection, pending)
        if listed_ids is None:
            return [None]
        ids = [read.id for read in pending if read.id in listed_ids]
        replies = iter(asked(connection, *(("CLIENT", "UNBLOCK", id) for id in ids)))
        return [next(replies) if read.id in listed_ids else 0 for read in pending]

    while pending:
        replies = _at_run(client, pending[0].run_id, send)
        if replies is None or not {0, 1}.issuperset(replies):
            return False
        # 0: it was answered already, or the server has not come to read it yet: asked again, since
        # to wait for its reply would be to wait until its block ends.
        answers = zip(pending, replies, strict=True)
        pending = [
            connection for connection, reply in answers if not (reply or connection.can_read(0.005))
        ]
        if pending and monotonic() > deadline:
            return False
    return True


def _listed_reads(connection: Any, reads: Sequence[LoneConnection]) -> set[int] | None:
    """Return the ids that the server has of connections of this process, asked once for each pair
    of connections; None: one of these ids is a stranger's there. Where it may not be asked, an id
    that the read was told has to do."""
    read_ids = _read_ids.setdefault(connection._sock, set())
    addresses = {read.id: read.address for read in reads if read.id not in read_ids}
    if addresses:
        is_ours_by_id = recognised(connection, [*addresses], addresses)
        if is_ours_by_id is None:
            is_ours_by_id = dict.fromkeys(addresses, True)
        if not all(is_ours_by_id.values()):
            return None
        read_ids.update(is_ours_by_id)
    return read_ids


def _at_run(client: Redis, run_id: str, ask: Callable[[Any], list[Any]]) -> list[Any] | None:
    """Return what a connection of ``client`` is told; None where ids of ``run_id`` may be of
    strangers there: after a restart, or a failover behind one address."""
    pool = client.connection_pool
    connection = pool.get_connection(*CHECKOUT)
    try:
        if not run_id or known_as(connection)[1] != run_id:
            return None
        return ask(connection)
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
