"""Other machines on this one: own host name, own process ids, the same loopback.

A `Host` is like a container: it runs one command, which is its pid 1, and a restart is a new Host
of the same name. Two may share a name; their pids are the same anyway. That is what makes
(host name, pid) useless as an identity.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from support.waiting import eventually

GUARD = Path(__file__).with_name("guarded.py")
# --kill-child: when `unshare` dies, the kernel kills the namespace's init, and with it everything.
UNSHARE = ["--pid", "--uts", "--mount-proc", "--fork", "--kill-child=SIGKILL"]
PROBE = "import os, socket; print(os.getpid(), socket.gethostname())"


class Host:
    """A machine that runs one command; give it to `Worker(host=...)`."""

    def __init__(self, hostname: str) -> None:
        self.hostname = hostname
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init: psutil.Process | None = None

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv`, wrapped so that it becomes this host's pid 1."""
        prefix = _unshare_prefix()
        if prefix is None:
            raise RuntimeError(f"no namespaces here: {namespaces_available()[1]}")
        return [*prefix, *_named(self.hostname), *argv]

    def attach(self, unshare: subprocess.Popen[bytes]) -> None:
        """Bind to the started wrapper, and wait until the command itself runs as pid 1."""
        if self._unshare is not None:
            raise RuntimeError(f"host {self.hostname} has run its command; make a new Host")
        self._unshare = unshare
        self._init = eventually(self._find_init, 10, message=f"host {self.hostname} is up")

    def _find_init(self) -> psutil.Process | None:
        assert self._unshare is not None
        children = psutil.Process(self._unshare.pid).children()
        # While the guard still runs the host name may not be set, and signals find no handler.
        booted = children and str(GUARD) not in children[0].cmdline()
        return children[0] if booted else None

    @property
    def init_pid(self) -> int:
        """The pid, seen from here, of what is pid 1 in there."""
        if self._init is None:
            raise RuntimeError(f"host {self.hostname} is not running")
        return int(self._init.pid)

    def kill(self) -> None:
        """Power off: SIGKILL the namespace's init; the kernel takes all the rest at once."""
        if self._init is None or self._unshare is None:
            return
        if self._unshare.poll() is None:
            self._init.send_signal(signal.SIGKILL)
            # A namespace's init is reaped only after all its processes are gone.
            self._unshare.wait(10)


def _named(hostname: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(GUARD), "--hostname", hostname, "--"]


@functools.cache
def _try_namespaces() -> tuple[list[str] | None, str]:
    if sys.platform != "linux":
        return None, f"namespaces are a Linux thing, this is {sys.platform}"
    unshare = shutil.which("unshare")
    if unshare is None:
        return None, "unshare (util-linux) is not installed"
    as_root = [[unshare, *UNSHARE]] if os.geteuid() == 0 else []
    reason = ""
    # Root in a container often may not; then a user namespace of its own may still be allowed.
    for prefix in [*as_root, [unshare, "-Ur", *UNSHARE]]:
        probe = [*prefix, *_named("probe"), sys.executable, "-I", "-S", "-c", PROBE]
        try:
            done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            reason = f"unshare failed: {exc}"
            continue
        if done.stdout.split() == ["1", "probe"]:
            return prefix, ""
        reason = f"unshare failed: {(done.stderr or done.stdout).strip()[-200:]}"
    return None, reason


def _unshare_prefix() -> list[str] | None:
    return _try_namespaces()[0]


def namespaces_available() -> tuple[bool, str]:
    """Whether a Host can run here, found out by running one; and if not, why."""
    prefix, reason = _try_namespaces()
    return prefix is not None, reason
