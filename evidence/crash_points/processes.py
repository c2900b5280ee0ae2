"""Whose connection is it, and is he dead? Read from /proc, so this runs on Linux alone."""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")


def session_of(pid: int) -> int:
    """Of a worker and all its processes: the pid of the worker. 0 if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def holder_of(port: int, peer: int, sessions: set[int]) -> int | None:
    """The process, of one of these sessions, whose socket has this local port."""
    socket = _socket(port, peer)
    if socket is None:
        return None
    holders = [
        pid
        for pid in (int(entry) for entry in os.listdir(PROC) if entry.isdigit())
        if session_of(pid) in sessions and _holds(pid, socket)
    ]
    # A child has its own sockets, and those that its parent had at the fork.
    return next((pid for pid in holders if pid in sessions), holders[0] if holders else None)


def is_gone(pid: int, within: float = 5.0) -> None:
    """Wait until a process that was killed is no more than a zombie."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {pid} outlives SIGKILL")


def _socket(port: int, peer: int) -> str | None:
    local, remote = f"0100007F:{port:04X}", f"0100007F:{peer:04X}"
    for row in (PROC / "net/tcp").read_text().splitlines()[1:]:
        words = row.split()
        if words[1] == local and words[2] == remote:
            return f"socket:[{words[9]}]"
    return None


def _holds(pid: int, socket: str) -> bool:
    folder = PROC / str(pid) / "fd"
    try:
        return any(_target(folder / name) == socket for name in os.listdir(folder))
    except OSError:
        return False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
