"""Forward the commands of workers to the Redis server, count those of one process, and harm it at
one of them: kill it or its worker, or cut its connection.

Each lane (`lane.py`) has one proxy. Tasks report their start to it on a second connection (the
*side* connection), so that the count begins with the job. If the proxy dies, so does the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

import redis

from support.servers.proxy import CHUNK, Words, take_commands
from support.servers.server import free_port

from ..history import History
from .processes import holder_of, is_gone, session_of

#: Commands with which a connection begins. They change nothing on the server, and are not counted.
HANDSHAKE = {b"HELLO", b"AUTH", b"SELECT", b"CLIENT", b"COMMAND"}


@dataclass
class Harm:
    """The harm of one point: its kind, and the command of the target's process at which it happens,
    counted from the start of the target."""

    point: str
    kind: str  # child, worker, connection
    moment: str  # before, after
    nth: int
    #: The pid of the process that runs the target; 0 until it has started.
    pid: int = 0
    seen: int = 0
    done: bool = False

    def meets(self, line: Line, words: Words) -> bool:
        """Count a command if the target's process sent it (or, unless a child is harmed, its
        worker). Return whether it is the one at which the harm happens."""
        if not self.pid or self.done or line.pid is None or words[0].upper() in HANDSHAKE:
            return False
        if self.kind == "child":
            mine = line.pid == self.pid
        else:
            mine = session_of(line.pid) == session_of(self.pid)
        self.seen += mine
        return mine and self.seen == self.nth


class Names:
    """The names of commands in the history. A script is named by its own first comment."""

    def __init__(self) -> None:
        self._scripts: dict[str, str] = {}

    def hear(self, words: Words) -> None:
        """Remember the text of a script that a command sends."""
        at = {b"EVAL": 1, b"SCRIPT": 2}.get(words[0].upper())
        if at is not None and len(words) > at:
            self._scripts[hashlib.sha1(words[at]).hexdigest()] = words[at].decode()

    def of(self, words: Words) -> str:
        """Return the name of a command."""
        texts = [word.decode(errors="replace") for word in words[:4]]
        if texts[0] == "EVAL":
            texts[:2] = ["EVALSHA", hashlib.sha1(words[1]).hexdigest()]
        if texts[0] == "EVALSHA":
            script = self._scripts.get(texts[1], "")
            said = next((row[2:] for row in script.splitlines() if row.startswith("--")), "")
            return f"script:{said}" if said else " ".join([texts[0], texts[1][:8], *texts[3:]])
        return " ".join(texts[:2])[:80]


class Line:
    """A connection through the proxy, and the pid of the process that opened it, if that is
    known."""

    def __init__(self, client: asyncio.StreamWriter, pid: int | None) -> None:
        self.client = client
        self.pid = pid
        self.server: asyncio.StreamWriter | None = None

    def reset(self) -> None:
        """Cut the connection on both sides, without sending what is buffered."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()


class Proxy:
    """A proxy between workers and a Redis server, as a context manager. It has one harm at a time.

    Arguments:
        server_port: port of the Redis server.
        side: path of the socket for the side connections of tasks.
        history: gets the lines of tasks, and of the harm.
    """

    def __init__(self, server_port: int, side: Path, history: History) -> None:
        self.port = free_port()
        self.side = side
        self.harm: Harm | None = None
        #: The sessions of the workers that may be harmed.
        self.workers: set[int] = set()
        #: The pids of processes that have run a target, and so have the connections that it needs.
        self.warm: set[int] = set()
        self._history = history
        self._upstream = server_port
        self._server = redis.Redis(port=server_port)
        self._names = Names()
        self._gates: dict[str, asyncio.Event] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._server.close()

    def begin(self, harm: Harm) -> None:
        """Set the next harm, and close all gates. The count begins when its target starts."""
        self._loop.call_soon_threadsafe(self._begin, harm)

    def open(self, gate: str) -> None:
        """Open a gate: tasks that wait for it continue, and later ones do not wait (in this
        point)."""
        self._loop.call_soon_threadsafe(lambda: self._gate(gate).set())

    # -- in the loop's thread

    async def _listen(self) -> None:
        self._listeners = [
            await asyncio.start_server(self._accept, "127.0.0.1", self.port),
            await asyncio.start_unix_server(self._hear, self.side),
        ]

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, harm: Harm) -> None:
        self.harm = harm
        self._gates = {}

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one message of a task, and write it to the history, or wait for the gate that it
        names. The task continues when it gets the answer."""
        with contextlib.suppress(OSError, ValueError):
            said = json.loads(await reader.readline())
            if said["event"] == "gate":
                await self._gate(said["gate"]).wait()
            else:
                self._history.write(**said)
                if said["event"] == "start" and said["name"] == "target":
                    self.warm.add(said["pid"])
                    if self.harm is not None and said["point"] == self.harm.point:
                        self.harm.pid = self.harm.pid or said["pid"]
            writer.write(b"on\n")
        writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("peername")[1]
        line = Line(writer, holder_of(port, self.port, self.workers))
        try:
            source, line.server = await asyncio.open_connection("127.0.0.1", self._upstream)
            replies = asyncio.ensure_future(self._replies(line, source))
            await self._commands(line, reader)
            replies.cancel()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            line.reset()

    async def _replies(self, line: Line, source: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                line.client.write(data)
                await line.client.drain()
        line.client.close()

    async def _commands(self, line: Line, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        assert line.server is not None
        while data := await reader.read(CHUNK):
            buffer += data
            for raw, words in take_commands(buffer):
                self._names.hear(words)
                harm = self.harm
                if harm is not None and harm.meets(line, words):
                    if harm.moment == "after":
                        line.server.write(raw)
                    self._strike(harm, line, words)
                    return
                line.server.write(raw)
            await line.server.drain()

    def _strike(self, harm: Harm, line: Line, words: Words) -> None:
        """Do the harm, and write it to the history. It blocks the proxy's event loop, so nothing
        else passes meanwhile."""
        # The server has to carry out what was forwarded before the harm, or "after" would be like
        # "before". It reads each socket once in a cycle of its event loop, and answers the second
        # PING in a later cycle than the first.
        self._server.ping()
        self._server.ping()
        if harm.kind == "child":
            os.kill(harm.pid, signal.SIGKILL)
            is_gone(harm.pid)
        elif harm.kind == "worker":
            session = session_of(harm.pid)
            os.killpg(session, signal.SIGKILL)
            is_gone(session)
            is_gone(harm.pid)
        line.reset()
        harm.done = True
        command = self._names.of(words)
        self._history.write(
            "harm",
            point=harm.point,
            kind=harm.kind,
            moment=harm.moment,
            nth=harm.nth,
            pid=harm.pid,
            by=line.pid,
            command=command,
        )
