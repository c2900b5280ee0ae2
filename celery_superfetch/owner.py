"""Who a process is: the identity it claims under, and what its host can tell of a pid."""

from __future__ import annotations

import os
import platform
import secrets
import socket
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import psutil

_own_pid = os.getpid()


def own_pid() -> int:
    """The pid of this process, without the system call: beside each send, that took a twentieth
    of the CPU of a job."""
    return _own_pid


def _forked() -> None:
    global _own_pid
    _own_pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class LocalProcess(Enum):
    """What this host knows of a registered process."""

    RUNNING = "running"
    GONE = "gone"
    ZOMBIE = "zombie"
    REUSED = "reused"


@dataclass(frozen=True)
class ProcessImage:
    """One running program: what ``os.kill(pid, 0)`` needs to prove something.

    A pid says nothing outside its boot and pid namespace, and nothing for long: it is reused.
    ``image`` tells apart two programs under the same pid and start time (HUP re-executes).
    """

    host: str
    pid: int
    start_time: str
    boot_id: str
    pid_namespace: str
    image: str

    @classmethod
    def current(cls) -> ProcessImage:
        """The calling process, looked up once and again after a fork."""
        return _current(own_pid())

    def same_ground(self, other: ProcessImage) -> bool:
        """True where ``other``'s pid means the same as one's own: host, boot and namespace."""
        return (self.host, self.boot_id, self.pid_namespace) == (
            other.host,
            other.boot_id,
            other.pid_namespace,
        )

    def same_process(self, other: ProcessImage) -> bool:
        """True where both are, or were, programs of one and the same process."""
        return self.same_ground(other) and (self.pid, self.start_time) == (
            other.pid,
            other.start_time,
        )


@lru_cache(maxsize=1)
def _current(pid: int) -> ProcessImage:
    return ProcessImage(
        host=host_name(),
        pid=pid,
        start_time=start_time(pid) or "",
        boot_id=boot_id(),
        pid_namespace=pid_namespace(),
        image=secrets.token_hex(6),
    )


def mint_owner(image: ProcessImage) -> str:
    """A fresh owner identity, ``host|pid|nonce``.

    The nonce is made anew after a fork and after the owner learned that it was reaped: in a
    container, host name and pid 1 come back with the next start.
    """
    return f"{image.host}|{image.pid}|{secrets.token_hex(6)}"


def host_name() -> str:
    """The host name, less the two characters that have a meaning in our keys."""
    return socket.gethostname().replace("|", "_").replace(":", "_")


def boot_id() -> str:
    """A value that changes with each boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return f"{platform.system()}-{int(psutil.boot_time())}"


def pid_namespace() -> str:
    """The inode of the pid namespace, or ``-`` where the system has no such thing."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "-"


def start_time(pid: int) -> str | None:
    """When ``pid`` started, as its system says it; None for no such (or no readable) process.

    On Linux field 22 of ``/proc/<pid>/stat``, raw ticks since boot: psutil's ``create_time``
    adds the boot time and so moves when the clock is set.
    """
    try:
        return _proc_stat(pid)[19]
    except FileNotFoundError:
        pass
    except (OSError, IndexError):
        return None
    try:
        return repr(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def look_at(pid: int, started: str) -> LocalProcess:
    """What became of the process that had ``pid`` and ``started``; valid on its own ground."""
    if not _exists(pid):
        return LocalProcess.GONE
    now = start_time(pid)
    if now is not None and started and now != started:
        return LocalProcess.REUSED
    return LocalProcess.ZOMBIE if _is_zombie(pid) else LocalProcess.RUNNING


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's process, but a process
        return True
    return True


def _is_zombie(pid: int) -> bool:
    try:
        return _proc_stat(pid)[0] in "ZX"
    except OSError:
        pass
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _proc_stat(pid: int) -> list[str]:
    """Fields 3 and on of ``/proc/<pid>/stat``; the name before them may hold anything."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
