"""Client ids: the numbers by which a server names connections. They are used to find out whether a
connection is one of this package, to close it, and to end its blocking command.

Each run of a server counts its connections from 1: after a restart, or at another server, an id may
be that of another program's connection. So an id is used only together with the run id of the
server that gave it.

Who calls: a worker's blocking reads and its key tracking use ``LoneConnection``, ``unblock`` and
``cut`` in the thread of the event loop. A reaper closes the connections of an owner (a process that
claims jobs) that it has declared dead (``cut``, through ``owner_registry.py``). Each observer of
owners (``reaper/evidence.py``) asks for ``run_id``. An owner has one ``PrimaryGuard``, which names
the server that gets its heartbeats: its heartbeat thread sets ``run_id``, and each of the owner's
connections calls ``greet`` when it connects and ``refuse_stranger`` after each reply. `superfetch
drill` asks for ``addresses``.

No key is written. If the process dies, the server closes its connections as soon as it notices.
Until then the server may still execute a blocking command of such a connection, which moves a job
to a landing list of the owner; a reaper requeues the job. If a process dies in ``cut``, some of the
connections stay open, and the next passes of reapers drain the jobs that come by them.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

redis connection:Connection.
    wait for a socket, and know that it is another: _sock can_read(timeout)
    read reports of changed lists between replies: _parser read_response(push_request=)
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from .connections import NotServed, Params, is_own_connection
from .pipeline import CHECKOUT, asked
from .server import info, is_temporary

#: Socket -> the id of its connection, and the run of the server there.
_known: WeakKeyDictionary[Any, tuple[int, str]] = WeakKeyDictionary()
#: Socket of the connection that sends CLIENT UNBLOCK -> the ids that it may name: CLIENT LIST has
#: shown that they are blocking reads of this process.
_own_read_ids: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

RECOGNISED_IDS = 64  # ids that are looked up with one command; an owner has fewer connections


class LoneConnection:
    """A connection without a pool, whose replies are read later: the event loop watches its socket
    and calls ``read`` when a reply has come. Each method may raise ``RedisError``."""

    def __init__(self, params: Params) -> None:
        options = {name: value for name, value in params.items() if name != "max_connections"}
        self._connection: Any = options.pop("connection_class", Connection)(**options)
        #: Its client id, and the run of the server that gave it. 0: unknown, so that the connection
        #: can be neither unblocked nor closed by the server.
        self.id = 0
        self.run_id = ""
        #: Since when (monotonic, s) a reply is missing; 0: none is. One reply is missing at most.
        self.waits_since = 0.0
        #: Reports of the server between replies (RESP3), see ``expect_reports``.
        self.reports: deque[list[Any]] = deque()

    def connect(self) -> int:
        """Connect; return the file descriptor to watch."""
        self._connection.connect()
        return int(self._connection._sock.fileno())

    def learn_id(self) -> None:
        """Get ``id`` and ``run_id`` from the server."""
        self.id, self.run_id = known_as(self._connection)

    @property
    def connected(self) -> bool:
        return self._connection._sock is not None

    @property
    def address(self) -> str:
        """The address of this end, as CLIENT LIST shows it. Behind a proxy CLIENT LIST shows the
        proxy's."""
        sock = self._connection._sock
        # A closed connection has no socket, and this end of a Unix socket has no name.
        host, port, *_ = (sock and sock.getsockname()) or ("", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def closed_while_idle(self) -> bool:
        return not self.connected or closed_while_idle(self._connection)

    def send(self, *command: Any) -> None:
        """Send a command; ``read`` reads its reply."""
        now = monotonic()
        # redis-py's health check would send a PING, and take the missing reply for the answer.
        self._connection.send_command(*command, check_health=False)
        self.waits_since = self.waits_since or now

    def read(self) -> Any:
        """Read the missing reply; wait for it if it has not come. An error that the server answers
        is raised."""
        self.waits_since = 0.0
        return self._connection.read_response()

    def expect_reports(self) -> None:
        """Append what the server reports between replies to ``reports``. Only RESP3 has reports."""
        parser = self._connection._parser
        # redis-py 5.0 has one handler for all kinds; hiredis has none, and returns them as replies.
        for name in ("set_invalidation_push_handler", "set_push_handler"):
            if (set_handler := getattr(parser, name, None)) is not None:
                return set_handler(self.reports.append)

    def receive(self) -> Any:
        """Read one message. Return it if it is the missing reply; if it is a report, append it to
        ``reports`` and return None. If the server answers an error, raise it."""
        waited_since, self.waits_since = self.waits_since, 0.0
        message = self._connection.read_response(push_request=True)
        # hiredis returns reports as lists. No command that is sent here has a list as its reply.
        if isinstance(message, list):
            self.reports.append(message)
            message = None
        if message is None:
            self.waits_since = waited_since
        return message

    def overdue(self, limit: float) -> bool:
        """Return whether a reply is missing for more than ``limit`` seconds."""
        try:
            late = self.waits_since and monotonic() - self.waits_since > limit
            # If this thread was busy for long, the reply may have come and may only not be read.
            return bool(late) and not self.can_read()
        except (RedisError, OSError):
            return True

    def can_read(self, timeout: float = 0.0) -> bool:
        return bool(self._connection.can_read(timeout=timeout))

    def disconnect(self) -> None:
        self.waits_since = 0.0
        self._connection.disconnect()


def closed_while_idle(connection: Any) -> bool:
    """Return whether an open connection without a missing reply is unusable: the server or a proxy
    has closed it, or there are bytes to read that are no reply."""
    try:
        return bool(connection.can_read(timeout=0))
    except (RedisError, OSError):
        return True


def run_id(client: Redis) -> str:
    """Return the id of the server's run; empty if INFO is forbidden or lacks it."""
    return str(info(client, "server").get("run_id", ""))


def known_as(connection: Any) -> tuple[int, str]:
    """Return the client id of a connection and the run of the server that gave it; 0 and an empty
    string if the server does not say. The server is asked once for each socket; a connection that
    was lost is opened again.

    Raises ResponseError if the server refuses to say it only now (BUSY). If that counted as unknown
    for the life of the socket, the owner record would name no connection, and ``PrimaryGuard``
    would let each server pass.
    """
    if connection._sock not in _known:
        number, reply = _unless_temporary(asked(connection, ("CLIENT", "ID"), ("INFO", "server")))
        match = isinstance(reply, bytes) and re.search(rb"^run_id:(\w+)", reply, re.MULTILINE)
        run = match[1].decode() if match else ""
        _known[connection._sock] = number if run and isinstance(number, int) else 0, run
    return _known[connection._sock]


def _unless_temporary(replies: list[Any]) -> list[Any]:
    """Return replies, which may be errors; raise the first that is temporary."""
    for reply in replies:
        if isinstance(reply, ResponseError) and is_temporary(reply):
            raise reply
    return replies


class PrimaryGuard:
    """The server that gets the heartbeats of this owner. The owner's other connections refuse any
    other server: after a failover an old primary that was frozen or cut off may answer for a while,
    and what it accepts will be lost."""

    #: The run of the server that answered the last heartbeat; empty: unknown.
    run_id = ""
    #: True: a connection of this owner has reached another server than the heartbeats, so one of
    #: the two is no longer the primary. The heartbeat session connects again to the primary before
    #: its next heartbeat, and sets this to False.
    contested = False

    def __init__(self) -> None:
        #: Wakes the heartbeat thread, which sets this when it is made. ``bool`` does nothing.
        self.wake: Callable[[], object] = bool

    def greet(self, connection: Any) -> None:
        """Store which run of the server a new connection has reached; raise NotServed if it is
        another than that of the heartbeats."""
        connection.run_id = known_as(connection)[1]
        self.refuse_stranger(connection)

    def refuse_stranger(self, connection: Any) -> None:
        """Raise NotServed if a connection has reached another server than the heartbeats. It is
        checked after each reply, since the heartbeats may have moved since it was opened."""
        # ``here`` is the run of the heartbeats' server.
        run, here, slot = connection.run_id, self.run_id, connection.slot
        # ``replaceable`` is False without Sentinels and without a cluster. Then, or if the cluster
        # shows one node, there may be a proxy that leads each connection to another server, and no
        # connection is wrong.
        proxied = not connection.replaceable or (slot is not None and slot.one_node)
        if proxied or run == here or not (run and here):
            return
        connection.disconnect()
        self.contested = True
        self.wake()
        raise NotServed(
            "this connection leads to another primary than the worker's heartbeats: its replies "
            "are discarded; looking for the current primary"
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
    """Find out by CLIENT LIST which of some client ids are connections of this package.

    Another program's connection must not be closed. Ids may be wrong although the run id is right:
    an owner record may be forged, and several proxies may show one run id while each numbers its
    connections by itself.

    Arguments:
        connection: the connection that asks.
        ids: the ids; the first 64 are looked up.
        addresses: id -> its address, of connections of this process.

    Returns:
        id -> whether it is a connection of this package, of each id that the server lists: the row
        has the package's name or the address in ``addresses``, and the user and database of
        ``connection``. None: the ACL forbids CLIENT LIST.

    Raises:
        ResponseError: the server refuses it only now (BUSY).
    """
    asker_id, _ = known_as(connection)
    asked_for = [id for id in ids if 0 < id < 2**63 and id != asker_id][:RECOGNISED_IDS]
    if not asker_id or not asked_for:
        return {}
    command = "CLIENT", "LIST", "ID", asker_id, *asked_for
    [reply] = _unless_temporary(asked(connection, command))
    if not isinstance(reply, bytes):
        return None
    rows = listed(reply)
    asker = rows.pop(asker_id, {})
    return {
        id: (is_own_connection(row) or row.get("addr") == (addresses or {}).get(id))
        and all(row.get(field) == asker.get(field) for field in ("user", "db"))
        for id, row in rows.items()
    }


def cut(
    client: Redis, run_id: str, ids: Sequence[int], addresses: Mapping[int, str] | None = None
) -> bool:
    """Close connections by CLIENT KILL: those of ``ids`` that are connections of this package, or
    of this process by ``addresses`` (see ``recognised``). Return False if one of them may still be
    open: the server has restarted, shows an id as another program's, or forbids CLIENT LIST or
    CLIENT KILL.

    Raises:
        RedisError: the server cannot be reached, or refuses it only now (BUSY): none may be closed.
    """

    def kill(connection: Any) -> list[Any]:
        is_own_by_id = recognised(connection, ids, addresses)
        if is_own_by_id is None:
            return [None]
        cut_ids = [id for id, is_own in is_own_by_id.items() if is_own]
        replies = asked(connection, *(("CLIENT", "KILL", "ID", id) for id in cut_ids))
        return [*replies, *(None for is_own in is_own_by_id.values() if not is_own)]

    replies = _at_run(client, run_id, kill)
    return replies is not None and all(isinstance(reply, int) for reply in replies)


def addresses(client: Redis, run_id: str, ids: Sequence[int]) -> list[str]:
    """Return the addresses, by CLIENT LIST, of those ids that are connections of this package.
    Raises as ``cut``."""

    def list_own(connection: Any) -> list[Any]:
        is_own_by_id = recognised(connection, ids) or {}
        own_ids = [id for id, is_own in is_own_by_id.items() if is_own]
        return asked(connection, ("CLIENT", "LIST", "ID", *own_ids)) if own_ids else []

    replies = _at_run(client, run_id, list_own) or ()
    lists = [listed(reply) for reply in replies if isinstance(reply, bytes)]
    return [row.get("addr", "") for rows in lists for row in rows.values()]


def unblock(client: Redis, connections: Sequence[LoneConnection]) -> bool:
    """End blocking commands by CLIENT UNBLOCK, so that a reply of each connection can be read at
    once.

    Returns:
        False if the server does not end all of them: it does not know an id, or forbids it.

    Raises:
        RedisError: a connection is lost, or the server refuses it only now (BUSY).
    """
    if any(
        not connection.id or connection.run_id != connections[0].run_id
        for connection in connections
    ):
        return False
    # ``can_read`` below would silently open a lost connection again.
    if not all(connection.connected for connection in connections):
        raise RedisConnectionError("a connection for blocking reads was lost")
    deadline, pending = monotonic() + 1.0, list(connections)

    def send(connection: Any) -> list[Any]:
        listed_ids = _listed_reads(connection, pending)
        if listed_ids is None:
            return [None]
        ids = [read.id for read in pending if read.id in listed_ids]
        commands = [("CLIENT", "UNBLOCK", id) for id in ids]
        replies = iter(_unless_temporary(asked(connection, *commands)))
        return [next(replies) if read.id in listed_ids else 0 for read in pending]

    while pending:
        replies = _at_run(client, pending[0].run_id, send)
        if replies is None or not {0, 1}.issuperset(replies):
            return False
        # 0: the connection does not block, or is not listed. Either its reply was sent already, or
        # the server has not read its command yet. In the second case CLIENT UNBLOCK is sent again:
        # otherwise the command would block for its whole time.
        answers = zip(pending, replies, strict=True)
        pending = [
            connection for connection, reply in answers if not (reply or connection.can_read(0.005))
        ]
        if pending and monotonic() > deadline:
            return False
    return True


def _listed_reads(connection: Any, reads: Sequence[LoneConnection]) -> set[int] | None:
    """Return the ids of ``reads`` that the server lists as connections of this process; None if it
    lists one as another program's. The server is asked once for each read and each connection that
    asks. If the ACL forbids CLIENT LIST, all ids are returned, unchecked."""
    own_ids = _own_read_ids.setdefault(connection._sock, set())
    addresses = {read.id: read.address for read in reads if read.id not in own_ids}
    if addresses:
        is_own_by_id = recognised(connection, [*addresses], addresses)
        if is_own_by_id is None:
            is_own_by_id = dict.fromkeys(addresses, True)
        if not all(is_own_by_id.values()):
            return None
        own_ids.update(is_own_by_id)
    return own_ids


def _at_run(client: Redis, run_id: str, call: Callable[[Any], list[Any]]) -> list[Any] | None:
    """Call ``call`` with a connection of ``client`` and return its replies; None if that connection
    has reached another run of the server than ``run_id``, where an id may be that of another
    program's connection."""
    pool = client.connection_pool
    connection = pool.get_connection(*CHECKOUT)
    try:
        if not run_id or known_as(connection)[1] != run_id:
            return None
        return call(connection)
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
