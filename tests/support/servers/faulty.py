"""Connections to a real server on which one fault happens, at a chosen point of their use.

A point is the moment before a send, after a send, or before a reply is read. Each command is
carried out, and its reply is read, before the send returns; the caller gets the reply later. So the
points of a run are the same each time, and at each of them it is certain what the server has done.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import redis
from greenlet import GreenletExit
from redis.backoff import NoBackoff
from redis.retry import Retry


class Point(Enum):
    """A moment of the use of a connection."""

    SEND = "before commands are sent"
    SENT = "after they were sent and carried out, before a reply is read"
    READ = "before a reply is read"


class Fault(Enum):
    """What happens at a point."""

    LOST = "the connection is lost"
    LATE = "the connection is lost, and the server gets the commands later"
    SLOW = "the server gets the commands when the first reply is read"
    KILLED = "the greenlet is killed"
    SIGNAL = "a signal handler runs"
    RAISING = "a signal handler runs and raises"
    REFUSED = "the server refuses the first command"
    LAST_REFUSED = "the server refuses the last command"
    FORGOTTEN = "the server has forgotten the scripts"


#: Fault -> the points at which it can happen.
POINTS: Mapping[Fault, frozenset[Point]] = {
    **dict.fromkeys(Fault, frozenset({Point.SEND})),
    **dict.fromkeys((Fault.LOST, Fault.KILLED, Fault.SIGNAL, Fault.RAISING), frozenset(Point)),
}

#: A command that a server answers as one over its memory limit does.
REFUSED_COMMAND = redis.Connection().pack_command(
    "EVAL", "return redis.error_reply('OOM command not allowed when used memory > maxmemory')", 0
)


class Terminated(BaseException):
    """What a signal handler raises, as Celery's does for a cold shutdown."""


#: What a fault may raise in the caller.
RAISED = (redis.RedisError, OSError, GreenletExit, Terminated)


class Faults:
    """The fault of a run, the points that the run has passed, and commands still on their way."""

    def __init__(self, client: redis.Redis) -> None:
        """Take a client without faults: late commands arrive by a connection like its own."""
        self._client = client
        parameters = plain_parameters(client)
        self._network = redis.Connection(**parameters)
        self.connections: list[FaultyConnection] = []
        #: Whether the server has the scripts: before the first run, and after one in which it has
        #: forgotten them, it has not.
        self.are_scripts_loaded = False
        self._pool = Pool(connection_class=FaultyConnection, faults=self, **parameters)
        self.client = redis.Redis(connection_pool=self._pool)
        self.reset()

    def reset(self) -> None:
        """Begin another run. Idle connections stay open; the others were left behind."""
        for connection in self.connections:
            if connection.replies or not connection.is_idle:
                connection.disconnect()
        self.connections = [connection for connection in self.connections if connection.is_idle]
        self._armed: tuple[Fault, int] | None = None
        self.handler: Callable[[], object] = int
        self.points: list[Point] = []
        self.hits: Counter[Fault] = Counter()
        self.last_hit: tuple[Fault, Point] | None = None
        #: Commands that the server has not got yet, in the order in which they were sent.
        self.late: list[bytes] = []
        self.loses_next_reply = False
        #: How often a reply was read that no command had asked for.
        self.overread_count = 0

    def reset_points(self) -> None:
        """Count points from here on."""
        self.points.clear()

    def arm(self, fault: Fault, at: int) -> None:
        """Let a fault happen at a point that is ``at`` points ahead."""
        self._armed = fault, len(self.points) + at

    def disarm(self) -> None:
        """Let no fault happen from here on."""
        self._armed = None
        self.loses_next_reply = False

    def pass_point(self, point: Point) -> Fault | None:
        """Count a point; return the fault that happens there, if one does."""
        self.points.append(point)
        if self._armed is None or self._armed[1] != len(self.points):
            return None
        fault, self._armed = self._armed[0], None
        if point not in POINTS[fault]:
            return None
        self.hits[fault] += 1
        self.last_hit = fault, point
        return fault

    def interrupt(self, fault: Fault | None) -> None:
        """Do what a fault does to the caller, whatever the connection is about to do."""
        if fault is Fault.KILLED:
            raise GreenletExit
        if fault in (Fault.SIGNAL, Fault.RAISING):
            self.handler()
        if fault is Fault.RAISING:
            raise Terminated
        if fault is Fault.FORGOTTEN:
            self._client.script_flush()
            self.are_scripts_loaded = False

    def deliver_late(self) -> None:
        """Let the server get the commands that are still on their way."""
        late, self.late = self.late, []
        if late:
            self._network.send_packed_command(late)
        for _ in late:
            with suppress(redis.ResponseError):
                self._network.read_response()

    @property
    def unread_count(self) -> int:
        """The number of replies that wait on connections in use. (Before the pool hands one out
        that has such replies, it connects it again.)"""
        return sum(len(one.replies) for one in self.connections if not one.is_idle)


def plain_parameters(client: redis.Redis) -> dict[str, Any]:
    """Return parameters of connections like a client's, which retry nothing."""
    chosen = client.connection_pool.connection_kwargs
    same = {name: chosen[name] for name in ("host", "port", "db", "password") if name in chosen}
    return {**same, "retry": Retry(NoBackoff(), 0), "protocol": 2}


class Pool(redis.ConnectionPool):
    """A pool that says which of its connections are idle."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        connection = super().get_connection(*args, **options)
        connection.is_idle = False
        return connection

    def release(self, connection: Any) -> None:
        connection.is_idle = True
        super().release(connection)


class FaultyConnection(redis.Connection):
    """A connection of ``Faults.client``."""

    def __init__(self, faults: Faults, **parameters: Any) -> None:
        self._faults = faults
        #: Replies that the server has sent and the caller has not read.
        self.replies: deque[Any] = deque()
        #: Commands that a slow network has not brought to the server yet.
        self._held: list[bytes] = []
        self._is_slow = False
        self._is_connecting = False
        self.is_idle = False
        super().__init__(**parameters)
        faults.connections.append(self)

    def connect(self) -> None:
        self._is_connecting = True
        try:
            super().connect()
        finally:
            self._is_connecting = False

    def disconnect(self, *args: Any, **options: Any) -> None:
        self._faults.late += self._held
        self._held = []
        self._is_slow = False
        self.replies.clear()
        super().disconnect(*args, **options)

    def can_read(self, timeout: float = 0) -> bool:
        return bool(self.replies or self._held)

    def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None:
        if self._is_connecting:
            super().send_packed_command(command, check_health=False)
            return
        self.connect()
        commands = commands_in(command)
        fault = self._faults.pass_point(Point.SEND)
        self._faults.interrupt(fault)
        if fault is Fault.LATE:
            self._faults.late += commands
        if fault in (Fault.LOST, Fault.LATE):
            self._lose()
        if fault in (Fault.REFUSED, Fault.LAST_REFUSED):
            commands[0 if fault is Fault.REFUSED else -1] = b"".join(REFUSED_COMMAND)
        self._held += commands
        self._is_slow |= fault is Fault.SLOW
        if not self._is_slow:
            self._carry_out()
        fault = self._faults.pass_point(Point.SENT)
        self._faults.interrupt(fault)
        if fault is Fault.LOST or self._faults.loses_next_reply:
            self._faults.loses_next_reply = False
            self._lose()

    def read_response(self, *args: Any, **options: Any) -> Any:
        if self._is_connecting:
            return super().read_response(*args, **options)
        fault = self._faults.pass_point(Point.READ)
        self._faults.interrupt(fault)
        if fault is Fault.LOST:
            self._lose()
        self._carry_out()
        if not self.replies:
            self._faults.overread_count += 1
            raise redis.TimeoutError("no reply comes")
        reply = self.replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _carry_out(self) -> None:
        """Bring commands to the server and read its replies."""
        held, self._held = self._held, []
        self._is_slow = False
        if held:
            super().send_packed_command(held, check_health=False)
        for _ in held:
            try:
                self.replies.append(super().read_response())
            except redis.ResponseError as exc:
                self.replies.append(exc)

    def _lose(self) -> None:
        self.disconnect()
        raise redis.ConnectionError("the connection was lost")


def commands_in(packed: Iterable[bytes]) -> list[bytes]:
    """Split what is sent into its commands, each as it is sent."""
    raw = b"".join(packed)
    commands = []
    at = 0
    while at < len(raw):
        begin = at
        count, at = _number(raw, at)
        for _ in range(count):
            size, at = _number(raw, at)
            at += size + 2
        commands.append(raw[begin:at])
    return commands


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """Read the number behind a type byte; return it, and where its line ends."""
    end = raw.index(b"\r\n", at)
    return int(raw[at + 1 : end]), end + 2
