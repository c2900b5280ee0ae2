"""Connections as the server knows them, by their ids: in another run of it these are strangers'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from redis import Connection, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from .connections import Params
from .scripts import CHECKOUT, reply_of
from .server import info

RUN_ID = re.compile(rb"^run_id:(\w+)", re.MULTILINE)

#: Seconds between two tries to call off a read that the server does not know as blocked, and
#: until that is given up.
UNBLOCK_PAUSE = 0.005
UNBLOCK_LIMIT = 1.0

#: Socket -> the run of the server at its other end.
_runs: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


class LoneConnection:
    """A connection that is of no pool: whoever watches its socket reads what comes.

    All raise ``redis.exceptions.RedisError`` where the server cannot be reached, or refuses.
    """

    def __init__(self, params: Params) -> None:
        own = {name: value for name, value in params.items() if name != "max_connections"}
        self._connection: Any = own.pop("connection_class", Connection)(**own)
        #: Its id at that run of the server; 0: it can be neither unblocked nor cut, only awaited.
        self.id = 0
        self.run_id = ""

    def connect(self) -> int:
        """Connect and return the file descriptor to watch."""
        self._connection.connect()
        return int(self._connection._sock.fileno())

    def learn_id(self) -> None:
        """Ask by which id it is known, as far as that is allowed."""
        self.run_id = run_behind(self._connection)
        self.send("CLIENT", "ID")
        number = reply_of(self._connection)
        self.id = 0 if isinstance(number, ResponseError) or not self.run_id else int(number)

    @property
    def connected(self) -> bool:
        """True while there is a socket."""
        return self._connection._sock is not None

    def send(self, *command: Any) -> None:
        """Send a command whose reply is read later."""
        # A health check reads a reply, and would take what is owed for its own.
        self._connection.send_command(*command, check_health=False)

    def read(self) -> Any:
        """The next reply."""
        return self._connection.read_response()

    def ask(self, *command: Any) -> Any:
        """Send a command and read its reply."""
        self.send(*command)
        return self.read()

    def can_read(self, timeout: float = 0.0) -> bool:
        """Whether something to read has come, or comes in so many seconds."""
        return bool(self._connection.can_read(timeout=timeout))

    def disconnect(self) -> None:
        """Close the socket; the server may go on with its command."""
        self._connection.disconnect()


def run_id(client: Redis) -> str:
    """Which run of the server this is; empty where INFO is forbidden or lacks it."""
    return str(info(client, "server").get("run_id", ""))


def run_behind(connection: Any) -> str:
    """Which run of the server an open connection leads to; asked once."""
    if connection._sock not in _runs:
        connection.send_command("INFO", "server", check_health=False)
        told = reply_of(connection)
        found = None if isinstance(told, ResponseError) else RUN_ID.search(told)
        _runs[connection._sock] = found[1].decode() if found else ""
    return _runs[connection._sock]


def connection_id(client: Redis) -> int:
    """The id of the connection that ``client`` would use next; 0 where that is forbidden."""
    try:
        return int(client.execute_command("CLIENT", "ID"))
    except (RedisError, TypeError, ValueError):
        return 0


def cut(client: Redis, run_id: str, ids: Sequence[int]) -> bool:
    """CLIENT KILL some connections, as far as that is allowed; False where nobody can tell the
    server that they were of."""
    return _to_connections(client, run_id, ("KILL", "ID"), ids) is not None


def unblock(client: Redis, connections: Sequence[LoneConnection]) -> bool:
    """CLIENT UNBLOCK those that wait in a command, so that their replies are there to be read.

    False where that is forbidden, has no effect in time, or ``client`` leads to another server by
    now; the replies then come when they come. RedisError: one of them broke.
    """
    if any(not one.id or one.run_id != connections[0].run_id for one in connections):
        return False
    if not all(one.connected for one in connections):  # to ask redis-py would be to connect anew
        raise RedisConnectionError("a blocking connection broke")
    deadline = monotonic() + UNBLOCK_LIMIT
    pending = list(connections)
    while pending:
        ids = [one.id for one in pending]
        replies = _to_connections(client, pending[0].run_id, ["UNBLOCK"], ids)
        if replies is None or monotonic() > deadline or not {0, 1}.issuperset(replies):
            return False
        # 0: it was answered already, or the server has not come to read it yet, which asks for
        # another try: to wait for its reply would be to wait until its block ends.
        pending = [
            one
            for one, reply in zip(pending, replies, strict=True)
            if not (reply or one.can_read(UNBLOCK_PAUSE))
        ]
    return True


def _to_connections(
    client: Redis, run_id: str, command: Sequence[str], ids: Sequence[int]
) -> list[Any] | None:
    """Send a sub-command of CLIENT to some connections of one run of the server.

    After a restart, or a failover behind one address, their ids are strangers'. So it goes by one
    connection of which it is known where it leads. Returns the replies, errors among them; None:
    another run is there now, or nobody can tell.
    """
    pool = client.connection_pool
    connection = pool.get_connection(*CHECKOUT)
    try:
        if not run_id or run_behind(connection) != run_id:
            return None
        commands = [("CLIENT", *command, id) for id in ids]
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        return [reply_of(connection) for _ in ids]
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
