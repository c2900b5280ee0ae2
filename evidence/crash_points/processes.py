"""Find the process that has a connection, and wait for the death of a process. Reads /proc, so it
runs on Linux only.

`proxy.py` and `lane.py` use it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")


def session_of(pid: int) -> int:
    """Return the session of a process, or 0 if it is gone. All processes of a worker are in one
    session, whose number is the pid of the worker's main process."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def holder_of(port: int, peer: int, sessions: set[int]) -> int | None:
    """Return the pid of the process that has a connection, or None.

    Arguments:
        port: the local port of the connection.
        peer: its remote port.
        sessions: the sessions in which the process is searched.
    """
    socket = _socket(port, peer)
    if socket is None:
        return None
    holders = [
        pid
        for pid in (int(entry) for entry in os.listdir(PROC) if entry.isdigit())
        if session_of(pid) in sessions and _holds(pid, socket)
    ]
    # A child also holds the sockets that its parent had at the fork. If the child were returned
    # for these, commands of the main process would be counted as the child's.
    return next((pid for pid in holders if pid in sessions), holders[0] if holders else None)


def is_gone(pid: int, within: float = 5.0) -> None:
    """Wait until a process that was killed is gone or a zombie. Raise TimeoutError after ``within``
    seconds."""
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
    """Return the socket of a connection on this host, as /proc names it, or None."""
    local, remote = f"0100007F:{port:04X}", f"0100007F:{peer:04X}"
    for row in (PROC / "net/tcp").read_text().splitlines()[1:]:
        words = row.split()
        if words[1] == local and words[2] == remote:
            return f"socket:[{words[9]}]"
    return None


def _holds(pid: int, socket: str) -> bool:
    """Return whether a process has a socket open."""
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
