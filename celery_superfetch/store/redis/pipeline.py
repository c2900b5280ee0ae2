"""A connection on which commands are sent before the replies to earlier ones were read. (It is not
redis-py's ``Pipeline``, which collects commands and sends them together.)

``PendingLeases`` of ``owner/in_flight`` has one for its acks, requeues and claims; ``Scripts``
makes one for each of its round trips. ``clients.py`` and ``refusals.py`` use ``asked``,
``owner_registry.py`` uses ``packed``. Their callers let one thread at a time use it.

If the process dies, the server may have carried out each command that was sent, or not. Either is
safe: each of the scripts moves a job as a whole or not at all, and a job that was not acked stays
in its private list, where a reaper finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple, Protocol

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from .call import Call

#: The arguments of ``ConnectionPool.get_connection``: redis-py before 5.3 wants a command's name.
CHECKOUT = () if redis.VERSION >= (5, 3) else ("EVALSHA",)
#: Seconds after which something counts as old: a connection that was not used for so long may have
#: been closed, and is checked first; replies that were left unread are read with the next send.
IDLE_S = 1.0
UNCOPIED_BYTES = 16 * 1024  # bytes from which an argument is sent by itself, and not copied


class Encoder(Protocol):
    """The maker of commands from calls, which knows the server: ``Scripts``."""

    client: Any

    @property
    def first_line(self) -> str: ...

    def command(self, call: Call) -> list[Any]: ...

    def run_all(self, calls: Sequence[Call], *, errors: bool = False) -> list[Any]: ...


class Command(NamedTuple):
    """A call that is sent, and one function for its reply and one for the loss of the reply.

    One of the two functions is called, once. There is an exception: if ``on_reply`` itself raises
    (a signal handler may, in the middle of it), ``on_lost`` is called after it.
    """

    call: Call
    on_reply: Callable[[Any], object]  # gets the reply, which may be an error of the server
    #: Called if no reply will come, with whether the command was sent: then the server may have
    #: carried it out, or not. If it was not sent, the server has surely not.
    on_lost: Callable[[bool], object]


def no_report(_: bool) -> None:
    """Do nothing: the ``on_lost`` of a command for which the error that ``send`` raises is
    enough."""


class Pipeline:
    """One connection, and the commands whose replies were not read yet. It is neither thread-safe
    nor reentrant: a signal handler must not use it while ``send`` is under way."""

    def __init__(self, scripts: Encoder) -> None:
        self.scripts = scripts
        self._connection: Any = None
        self._pool: Any = None
        self._used = 0.0  # when something was sent or read last (monotonic s)
        self._unread: list[Command] = []  # in the order in which they were sent
        self._unread_since = 0.0  # when the first of them was sent (monotonic s)
        #: Names of the scripts whose whole text was sent on this connection: the server knows them.
        self._sent_whole: set[str] = set()

    @property
    def has_unread(self) -> bool:
        """Return whether there are replies that were not read yet."""
        return bool(self._unread)

    @property
    def has_late_replies(self) -> bool:
        """Return whether there are replies that were not read for ``IDLE_S`` seconds: the
        connection may be lost by now."""
        return bool(self._unread) and monotonic() >= self._used + IDLE_S

    @property
    def is_idle(self) -> bool:
        """Return whether it has a connection that nothing needs at the moment."""
        in_use = self._connection is None or self._unread
        return not in_use and monotonic() >= self._used + IDLE_S

    def send(self, commands: Sequence[Command], *, wait: bool = True, leave: int = 0) -> None:
        """Send commands and read the replies that are due.

        Arguments:
            wait: read all replies, those to ``commands`` and the earlier ones. False: a later send
                reads the replies to ``commands``; which earlier replies are read now, ``leave``
                says. (Without commands all earlier replies are read.)
            leave: with ``wait=False``: if fewer earlier replies than this are unread, they stay
                unread, too, until the oldest of them is ``IDLE_S`` seconds old.

        Raises:
            RedisError, OSError: the connection failed. Every reply that was not read is lost
                (``on_lost``). The same holds if a signal handler raises, or the greenlet is killed.
                An error that the server answers does not raise: it is a reply.
        """
        earlier = sent = len(self._unread)
        try:
            self._unread += commands  # first, so that after an error below they count as lost
            # The first line of scripts depends on the server, which is asked for it once. That is
            # done here: later it would take a second connection beside this one.
            self.scripts.first_line  # noqa: B018
            connection = self._connected(earlier)
            if commands:
                # A health check would take an unread reply for the reply to itself.
                packed_commands = self._packed(commands, wait)
                sent = len(self._unread)  # an error in the middle of the write may have sent some
                connection.send_packed_command(packed_commands, check_health=not earlier)
            due = self._due(earlier, wait=wait, leave=leave)
            replies = self._run_unknown_again(due, [reply_of(connection) for _ in due])
            self._used = monotonic()
            if due or not earlier:
                self._unread_since = self._used
            for reply in replies:
                self._unread[0].on_reply(reply)
                del self._unread[0]
            if not self._unread and any(map(hangs_up, replies)):
                self.drop()
        except BaseException:  # also the end of a greenlet, and what a signal handler raises
            self._drop(sent)
            raise

    def _due(self, earlier: int, *, wait: bool, leave: int) -> Sequence[Command]:
        """Return the commands whose replies are read now. ``earlier``: how many of the unread ones
        were sent before this send."""
        if wait:
            return [*self._unread]
        has_new = len(self._unread) > earlier
        if has_new and earlier < leave and monotonic() < self._unread_since + IDLE_S:
            return []
        return self._unread[:earlier]

    def drop(self) -> None:
        """Close the connection, and report each unread reply as lost: if it were read later, it
        would be taken for the reply to another command."""
        self._drop(len(self._unread))

    def _drop(self, sent: int) -> None:
        """Drop the connection, as ``drop``; only the first ``sent`` unread commands were sent."""
        lost, self._unread = self._unread, []
        try:
            if self._connection is not None:
                self._connection.disconnect()
                self.release()
        finally:
            for number, command in enumerate(lost):
                command.on_lost(number < sent)

    def release(self) -> None:
        """Return the connection to its pool; no reply may be unread. A client with a single
        connection of its own (``single_connection_client``) keeps it."""
        connection, self._connection = self._connection, None
        if connection is not None and connection is not self.scripts.client.connection:
            self._pool.release(connection)

    def _packed(self, commands: Sequence[Command], wait: bool) -> list[bytes]:
        """Return the bytes of commands. Without ``wait`` a script that the server may not know is
        sent with its whole text. If its digest were unknown, that would be found out too late: the
        commands behind it have run by then."""
        calls = [command.call for command in commands]
        if not wait:
            calls = [
                call if call.name in self._sent_whole else call._replace(whole=True)
                for call in calls
            ]
            self._sent_whole.update(call.name for call in calls)
        return packed(map(self.scripts.command, calls))

    def _connected(self, unread_count: int) -> Any:
        """Return the connection of the last send. If it was idle for long, or there is none, get
        one from the pool, which checks it first. If replies are unread and the client has another
        pool by now, since this process has moved to another server, raise ``ConnectionError``: the
        replies of the old server are lost."""
        pool = self.scripts.client.connection_pool
        if unread_count:
            if self._pool is pool:
                return self._connection
            raise RedisConnectionError(
                "the connection to the server before the failover was "
                "closed before its replies were read"
            )
        if self._connection is not None:
            if self._pool is pool and monotonic() < self._used + IDLE_S:
                return self._connection
            self.release()
        # redis-py's client is bypassed: its work around a command costs more than twice as much as
        # the send itself.
        self._pool, self._sent_whole = pool, set()
        self._connection = self.scripts.client.connection or pool.get_connection(*CHECKOUT)
        return self._connection

    def _run_unknown_again(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Run the scripts again that a restarted server did not know (NOSCRIPT): nothing of them
        has run. They run after the commands that were sent behind them now, so a script on which
        such commands rely is always sent with its text (``Call.whole``). All are sent in one round
        trip: the first call of each script has the whole text, the others its digest."""
        unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            calls = [commands[at].call for at in unknown]
            first = {call.name: at for at, call in reversed([*enumerate(calls)])}
            again = [call._replace(whole=first[call.name] == at) for at, call in enumerate(calls)]
            for at, reply in zip(unknown, self.scripts.run_all(again, errors=True), strict=True):
                replies[at] = reply
        return replies


def asked(connection: Any, *commands: Sequence[Any]) -> list[Any]:
    """Return the replies to some commands that are sent at once, errors among them."""
    # A health check would be one more round trip.
    connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    return [reply_of(connection) for _ in commands]


def reply_of(connection: Any) -> Any:
    """Return the next reply. If the server answered an error, return it instead of raising it."""
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc


def hangs_up(reply: Any) -> bool:
    """Return whether a server that answers so closes the connection, some time after."""
    return isinstance(reply, ResponseError) and str(reply).startswith("Protocol error")


def packed(commands: Iterable[Sequence[Any]]) -> list[bytes]:
    """Return the bytes of commands as they are sent, with large payloads uncopied, in a third of
    the time of redis-py's packer. Small parts are joined as texts, in which each character stands
    for a byte (latin-1): to format bytes would take longer."""
    done: list[bytes] = []
    small: list[str] = []
    for command in commands:
        small.append(f"*{len(command)}\r\n")
        for arg in command:
            if isinstance(arg, bytes):
                if len(arg) >= UNCOPIED_BYTES:
                    done += ["".join([*small, f"${len(arg)}\r\n"]).encode("latin-1"), arg]
                    small = ["\r\n"]
                    continue
                arg = arg.decode("latin-1")
            elif type(arg) in (int, float):
                arg = repr(arg)
            elif not isinstance(arg, str):
                raise TypeError(f"cannot be sent to Redis: {arg!r} ({type(arg).__name__})")
            elif type(arg) is not str or not arg.isascii():
                arg = arg.encode().decode("latin-1")
            small.append(f"${len(arg)}\r\n{arg}\r\n")
    return [*done, "".join(small).encode("latin-1")]
