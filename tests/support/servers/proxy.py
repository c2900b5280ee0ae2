"""A network that fails on demand: a TCP proxy in front of a server, which reads what passes by."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from support.servers.server import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

#: A command on the wire: its words.
Words = list[bytes]
CHUNK = 1 << 16
#: Bytes of a reply that says no more than "nothing", or "done".
SHORT = 64
RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Cut:
    """Ends one connection at the `nth` command that `matches`, or lets it stand still from there
    on; made by `FaultProxy.cut_at` and `hold_at`."""

    def __init__(
        self, matches: Callable[[Words], bool], nth: int, reply_lost: bool, holds: bool = False
    ) -> None:
        self.matches = matches
        self.left = nth
        self.reply_lost = reply_lost
        self.holds = holds
        self.marker = b"cut-%d" % id(self)
        self.done = threading.Event()

    def hits(self, words: Words) -> bool:
        if self.left and self.matches(words):
            self.left -= 1
            return not self.left
        return False


class FaultProxy:
    """Passes connections on to `port`, until it is told to fail. Use as a context manager.

    Every fault can be combined with others; `heal` ends those that last. `tls`: of this side alone.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = ("127.0.0.1", port)
        self._tls = tls
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._cuts: list[Cut] = []
        self._halves: list[tuple[Callable[[Words], bool], threading.Event]] = []
        self._flowing = asyncio.Event()

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        self._loop.call_soon_threadsafe(self._flowing.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # -- faults of a moment

    def cut(self) -> int:
        """Reset every connection, on both sides; how many there were."""
        return self._run(self._cut())

    def cut_at(
        self, matches: Callable[[Words], bool], nth: int = 1, *, reply_lost: bool
    ) -> threading.Event:
        """Reset the connection that sends the `nth` command that `matches`; set when it happened.

        Arguments:
            reply_lost: the server carries the command out first; else it never sees it.
        """
        return self._add(Cut(matches, nth, reply_lost))

    def hold_at(
        self, matches: Callable[[Words], bool], nth: int = 1, *, carried_out: bool
    ) -> threading.Event:
        """The same, but the connection stays open and says nothing any more: whoever sent the
        command waits there, to be killed."""
        return self._add(Cut(matches, nth, carried_out, holds=True))

    def _add(self, cut: Cut) -> threading.Event:
        self._loop.call_soon_threadsafe(self._cuts.append, cut)
        return cut.done

    def halve_at(self, matches: Callable[[Words], bool]) -> threading.Event:
        """Let half of the reply to a command that `matches` through, and from then on nothing on
        that connection, which stays open; set when it happened. Replies of a few bytes, such as
        that nothing has come, do not count.
        """
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._halves.append, (matches, done))
        return done

    # -- faults that last

    def black_hole(self) -> int:
        """What a firewall does that forgot its connections: from now on all that is sent on them
        vanishes, in both directions, also that somebody closed. New ones work. Lasts for ever.
        """
        return self._run(self._deafen())

    def refuse(self) -> None:
        """Refuse new connections; those that are there go on."""
        self._run(self._stop_listening())

    def stall(self) -> None:
        """Let nothing through, and lose nothing: a network that stands still."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def heal(self) -> None:
        """Let everything through again. What is in a black hole stays there."""
        self._loop.call_soon_threadsafe(self._flowing.set)
        self._run(self._listen())

    # -- in the loop's thread

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accept, "127.0.0.1", self.port, reuse_address=True, ssl=self._tls
            )

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> int:
        lines = list(self._lines)
        for line in lines:
            line.reset()
        return len(lines)

    async def _deafen(self) -> int:
        for line in self._lines:
            line.deaf = True
        return len(self._lines)

    async def _close(self) -> None:
        await self._stop_listening()
        await self._cut()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = _Line(writer)
        self._lines.add(line)
        try:
            if not await self.admits():
                return
            source, line.server = await asyncio.open_connection(*self.upstream)
            await self.opened(line, source)
            await asyncio.gather(self._commands(line, reader), self._replies(line, source))
        except (OSError, asyncio.CancelledError):
            pass  # the server is down, somebody closed, or it is all over
        finally:
            self._lines.discard(line)
            line.reset()

    async def opened(self, line: _Line, source: asyncio.StreamReader) -> None:
        """Called once the server has a connection, before anything is sent on it."""

    async def sent(self, line: _Line, raw: bytes, words: Words) -> bytes:
        """Return what the server gets for a command: here the command."""
        return raw

    async def admits(self) -> bool:
        """Wait as long as a new connection takes; False when there is to be none."""
        await self._flowing.wait()
        return True

    async def travel(self, *, upstream: bool) -> None:
        """Wait as long as data takes to the server (`upstream`), or back from it."""
        await self._flowing.wait()

    async def _passes(self, line: _Line, *, upstream: bool) -> bool:
        """Wait as long as the network takes; False when this connection is in a black hole."""
        await self.travel(upstream=upstream)
        return not line.deaf

    async def _commands(self, line: _Line, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        assert line.server is not None
        while data := await reader.read(CHUNK):
            buffer += data
            if not await self._passes(line, upstream=True):
                buffer.clear()
                continue
            for raw, words in take_commands(buffer):
                if line.server.is_closing():
                    return
                line.halves = [done for matches, done in self._halves if matches(words)]
                cut = next((c for c in list(self._cuts) if c.hits(words)), None)
                if cut is None:
                    line.server.write(await self.sent(line, raw, words))
                    continue
                self._cuts.remove(cut)
                if cut.reply_lost:
                    # The answer to this echo comes after the command was carried out.
                    echo = b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(cut.marker), cut.marker)
                    line.lost = cut
                    line.server.write(raw + echo)
                else:
                    line.end(cut)
                    if not cut.holds:
                        return
                    buffer.clear()
                    break
            await line.server.drain()
        # That a client has gone reaches the server by the same way.
        if await self._passes(line, upstream=True):
            line.server.close()

    async def _replies(self, line: _Line, source: asyncio.StreamReader) -> None:
        seen = b""
        while data := await source.read(CHUNK):
            if not await self._passes(line, upstream=False):
                continue
            if line.lost is not None:
                seen += data
                if line.lost.marker in seen:
                    line.end(line.lost)
                    if not line.lost.holds:
                        return
                continue
            if len(data) > SHORT and any(not done.is_set() for done in line.halves):
                data, line.deaf = data[: len(data) // 2], True
                for done in line.halves:
                    done.set()
            line.client.write(data)
            await line.client.drain()
        if not line.deaf:
            line.client.close()


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        #: Where a proxy has ids of its own: its id, and the server's.
        self.id = self.server_id = self.proxy = 0
        self.in_transaction = False
        self.deaf = False
        #: Those that wait for a reply on this connection to be cut half-way.
        self.halves: list[threading.Event] = []
        #: The cut that waits for the server to have done what it must not hear of.
        self.lost: Cut | None = None

    def end(self, cut: Cut) -> None:
        if cut.holds:
            self.deaf = True
        else:
            self.reset()
        cut.done.set()

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None and not writer.is_closing():
                with contextlib.suppress(OSError):
                    sock: Any = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                writer.transport.abort()


def take_commands(buffer: bytearray) -> list[tuple[bytes, Words]]:
    """Take the complete commands from `buffer`: each as it came, and its words."""
    commands = []
    while (end := _end(buffer)) is not None:
        size, words = end
        commands.append((bytes(buffer[:size]), words))
        del buffer[:size]
    return commands


def _end(buffer: bytearray) -> tuple[int, Words] | None:
    """Where the first command ends, and its words; None when it is not complete."""
    at = buffer.find(b"\r\n")
    if at < 0:
        return None
    if buffer[:1] != b"*":  # an inline command, as people type them
        return at + 2, bytes(buffer[:at]).split()
    count, at = int(buffer[1:at]), at + 2
    words: Words = []
    for _ in range(count):
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(buffer[at + 1 : line_end])
        at = line_end + 2 + size + 2
        if at > len(buffer):
            return None
        words.append(bytes(buffer[line_end + 2 : at - 2]))
    return at, words
