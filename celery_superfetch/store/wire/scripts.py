"""Loads ``store/lua/*.lua`` and runs them by digest; a script lost by the server is sent again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import redis
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from ...model.job import digest
from ...model.lazy import lazy_property
from .server import first_line

LUA = Path(__file__).parents[1] / "lua"

#: What redis-py before 5.3 wants to know of the command when it hands out a connection.
CHECKOUT = () if redis.VERSION >= (5, 3) else ("EVALSHA",)
#: Scripts that run where the server takes no write, on a replica, say.
READS = {"counters", "holdings", "pages", "payloads"}
IDLE = 1.0  # seconds after which a connection is looked at before use: it may have been closed
LARGE = 16 * 1024  # bytes from which an argument is sent for itself, and not copied


class Call(NamedTuple):
    """One run of a script, or one plain command: its name, keys and arguments."""

    name: str
    keys: Sequence[str]
    args: Sequence[Any]
    #: Send the whole text, which no server can have forgotten: its successors rely on it.
    whole: bool = False
    is_plain: bool = False  # a command of Redis's own


class Scripts:
    """The scripts, run through one plain client; each call declares the key that never exists."""

    def __init__(self, client: Redis, never: str) -> None:
        self.client = client
        self._never = never
        self._digest = cache(lambda name: digest(self._source(name).encode()))

    def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        whole: bool = False,
        is_plain: bool = False,
    ) -> Any:
        """Run one script (a ``Call``) and return its reply; RedisError where there is none."""
        return self.run_all([Call(name, keys, args, whole, is_plain)])[0]

    def run_all(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]:
        """Run several in one round trip, in order, as no transaction; ``errors``: are returned."""
        line = Line(self)
        try:
            _, replies = line.exchange(calls)
        finally:
            line.release()
        for reply in replies:
            if isinstance(reply, Exception) and not errors:
                raise reply
        return replies

    def command(self, call: Call) -> list[Any]:
        name, keys, args, whole, is_plain = call
        if is_plain:
            return [name, *keys, *args]
        verb = ["EVAL", self._source(name)] if whole else ["EVALSHA", self._digest(name)]
        return [*verb, len(keys) + 1, *keys, self._never, *args]

    def _source(self, name: str) -> str:
        flags = "no-writes" if name in READS else "allow-oom"
        return self.first_line.format(flags=flags) + source(name)

    @lazy_property
    def first_line(self) -> str:
        return first_line(self.client)


class Line:
    """A connection on which more may be sent before the last replies were read. Not thread-safe."""

    def __init__(self, scripts: Scripts) -> None:
        self.scripts = scripts
        self._connection: Any = None
        self._pool: Any = None
        self._used = 0.0
        self.owed: list[Call] = []  # whose replies were not read
        self._owed_since = 0.0  # when the first of them was sent (monotonic s)
        self._told: set[str] = set()  # scripts that the server at the other end was told whole

    @property
    def overdue(self) -> bool:
        """Whether they came long ago; the connection may be lost by now."""
        return bool(self.owed) and monotonic() >= self._used + IDLE

    def exchange(
        self, calls: Sequence[Call], *, wait: bool = True, leave: int = 0
    ) -> tuple[list[Any], list[Any]]:
        """Send scripts; returns the replies that were owed and those to ``calls``, as far as they
        were read, errors among them (RedisError: all are lost). Without ``wait`` those to ``calls``
        are left to a later exchange, and so are up to ``leave`` others, for IDLE at most; one
        without calls reads all."""
        self.scripts.first_line  # noqa: B018 - else it were asked for by a second connection
        # Taken out meanwhile: a signal's handler may come by here.
        connection, self._connection = self._connected(), None
        owed, self.owed = self.owed, []
        young = not owed or (len(owed) < leave and monotonic() < self._owed_since + IDLE)
        due = [] if calls and not wait and young else owed
        try:
            if calls:
                # A health check would take what is owed for the reply to itself.
                connection.send_packed_command(self.packed(calls, wait), check_health=not owed)
            read = [*due, *calls] if wait else due
            replies = self._again(read, [reply_of(connection) for _ in read])
        except BaseException:
            self._drop_handlers()
            self._connection = connection
            self.drop()
            raise
        self._drop_handlers()
        left = [] if wait else [*calls] if due else [*owed, *calls]
        # All at once: a signal's handler may raise in between.
        self._connection, self._used, self.owed = connection, monotonic(), left
        if due or not owed:
            self._owed_since = self._used
        if not left and any(map(hangs_up, replies)):
            self.drop()
        return replies[: len(due)], replies[len(due) :]

    def _drop_handlers(self) -> None:
        """The connection that a signal's handler has put in place of ours."""
        if self._connection is not None:
            self.drop()

    def packed(self, calls: Sequence[Call], wait: bool) -> list[bytes]:
        """As they are sent: what nobody waits for has to be carried out although the server may
        not know it yet."""
        if not wait:
            calls = [
                call if call.name in self._told else call._replace(whole=True) for call in calls
            ]
            self._told.update(call.name for call in calls)
        return packed(map(self.scripts.command, calls))

    def _connected(self) -> Any:
        """The connection of last time; the pool looks at one that lay idle."""
        pool = self.scripts.client.connection_pool
        if self.owed:
            if self._pool is pool:
                return self._connection
            self.drop()
            raise RedisConnectionError("the server was left, and with it the answers it owed")
        if self._connection is not None:
            if self._pool is pool and monotonic() < self._used + IDLE:
                return self._connection
            self.release()
        # Not by redis-py's client, which costs more than twice as much as what it is for.
        self._pool, self._told = pool, set()
        self._connection = self.scripts.client.connection or pool.get_connection(*CHECKOUT)
        return self._connection

    def drop(self) -> None:
        """Give up what is owed: read later, it would be taken for the replies to somebody else."""
        self.owed = []
        self._connection.disconnect()
        self.release()

    @property
    def rests(self) -> bool:
        """Whether it has a connection that lies idle."""
        in_use = self._connection is None or self.owed
        return not in_use and monotonic() >= self._used + IDLE

    def release(self) -> None:
        """Let others have the connection; nothing may be owed."""
        connection, self._connection = self._connection, None
        if connection is not None and connection is not self.scripts.client.connection:
            self._pool.release(connection)

    def _again(self, calls: Sequence[Call], replies: list[Any]) -> list[Any]:
        """Run once more what a restarted server no longer knew: nothing of that ran, so it runs
        after its successors. One round trip for all: the first of each script brings its text."""
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            first = {calls[at].name: at for at in reversed(unknown)}
            again = [calls[at]._replace(whole=first[calls[at].name] == at) for at in unknown]
            for at, reply in zip(unknown, self.scripts.run_all(again, errors=True), strict=True):
                replies[at] = reply
        return replies


def read_all() -> None:
    """Read them while they are those of this version: where the package is upgraded beneath a
    worker, it and its pool would go on by scripts that mean their arguments otherwise."""
    for path in LUA.glob("*.lua"):
        source(path.stem)


@cache
def source(name: str) -> str:
    text, (shared, called) = (LUA / f"{name}.lua").read_text(), _shared()
    before = shared if called.search(text) else ""
    return "KEYS[#KEYS] = nil\n" + before + text  # scripts do not see the key that never exists


@cache
def _shared() -> tuple[str, re.Pattern[str]]:
    """What several scripts call, and a pattern of its calls."""
    text = (LUA / "shared.lua").read_text()
    calls = "|".join(re.findall(r"^local function (\w+)", text, re.MULTILINE))
    return text, re.compile(rf"\b({calls})\(")


def asked(connection: Any, *commands: Sequence[Any]) -> list[Any]:
    """The replies to some commands that are sent at once, errors among them."""
    # A health check would read one of them.
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    return [reply_of(connection) for _ in commands]


def reply_of(connection: Any) -> Any:
    """The next reply; an error that the server answered is one."""
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def hangs_up(reply: Any) -> bool:
    """Whether a server that answers so closes the connection, some time after."""
    return isinstance(reply, ResponseError) and str(reply).startswith("Protocol error")


def packed(commands: Iterable[Sequence[Any]]) -> list[bytes]:
    """Commands as they are sent, large payloads uncopied, in a third of the time of redis-py's
    packer: a character of ``small`` stands for a byte, since to format those takes longer."""
    done: list[bytes] = []
    small: list[str] = []
    for command in commands:
        small.append(f"*{len(command)}\r\n")
        for arg in command:
            if isinstance(arg, bytes):
                if len(arg) >= LARGE:
                    done += ["".join([*small, f"${len(arg)}\r\n"]).encode("latin-1"), arg]
                    small = ["\r\n"]
                    continue
                arg = arg.decode("latin-1")
            elif type(arg) in (int, float):
                arg = repr(arg)
            elif not isinstance(arg, str):
                raise TypeError(f"not to be sent to Redis: {arg!r} ({type(arg).__name__})")
            elif type(arg) is not str or not arg.isascii():
                arg = arg.encode().decode("latin-1")
            small.append(f"${len(arg)}\r\n{arg}\r\n")
    return [*done, "".join(small).encode("latin-1")]
