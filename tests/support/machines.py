"""A simulated machine on which several commands come and go, and share a host name and pids."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from support.hosts import Host
from support.process import Process

if TYPE_CHECKING:
    from typing_extensions import Self

#: What is pid 1 there: it starts nothing, and buries what loses its parent.
INIT = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwhile True: signal.pause()"


class Machine:
    """Stays up until it is left; use as a context manager. `seat()` is for one command."""

    def __init__(self, hostname: str, directory: Path) -> None:
        self.hostname = hostname
        self._host = Host(hostname)
        self._directory = directory

    def __enter__(self) -> Self:
        self._init = Process(
            [sys.executable, "-I", "-S", "-c", INIT],
            log=self._directory / f"machine-{self.hostname}.log",
            host=self._host,
            title=f"machine {self.hostname}",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._init.close()

    def seat(self) -> Seat:
        """A place for one command: give it to `Worker(host=...)`."""
        return Seat(self.hostname, self._host.init_pid)


class Seat(Host):
    """As a `Host` of its own, but its machine goes on when its command ends."""

    def __init__(self, hostname: str, machine: int) -> None:
        super().__init__(hostname)
        self._machine = machine

    def command(self, argv: Sequence[str]) -> list[str]:
        nsenter = shutil.which("nsenter")
        if nsenter is None:
            raise RuntimeError("nsenter (util-linux) is not installed")
        enter = [nsenter, "--target", str(self._machine), "--pid", "--uts", "--mount"]
        if os.geteuid() != 0:
            enter += ["--user", "--preserve-credentials"]
        # Entering a mount namespace leads to its root directory.
        return [*enter, f"--wd={os.getcwd()}", "--", *argv]

    def _find_init(self) -> psutil.Process | None:
        assert self._unshare is not None
        children = psutil.Process(self._unshare.pid).children()
        entered = children and "nsenter" not in children[0].cmdline()[0]
        return children[0] if entered else None

    def kill(self) -> None:
        """SIGKILL the command and all it has started, at once."""
        if self._unshare is not None and self._unshare.poll() is None:
            os.killpg(self._unshare.pid, signal.SIGKILL)
            self._unshare.wait(10)


def pid_inside(process: psutil.Process) -> int:
    """The pid by which a process of a machine knows itself."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(row for row in status.splitlines() if row.startswith("NSpid:"))
    return int(line.split()[-1])
