"""The identity of a process (``ProcessImage``), and what its host knows of a pid.

An owner (the part of a worker that claims jobs) has the identity of its process in its record, and
makes its own name from it. A reaper, and a worker's maintenance thread, compare the record with the
process that has that pid now: so the death of a process is found. The transport asks for
``own_pid`` before each send. All of this only reads: a death leaves nothing behind.
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import psutil

from .verdict import Reason

#: Kept, since the system call before each send took a twentieth of a job's CPU time.
own_pid = cache(os.getpid)
if hasattr(os, "register_at_fork"):  # Windows, where only producers run, has no fork
    os.register_at_fork(after_in_child=own_pid.cache_clear)


@dataclass(frozen=True)
class ProcessImage:
    """One program that runs, or ran, in a process. A pid alone means nothing outside its boot and
    pid namespace, and is reused. ``image``, a random value, tells apart two programs of one
    process: at a SIGHUP a worker executes itself again, under the same pid and start time."""

    host: str
    pid: int
    start_time: str
    boot_id: str
    pid_namespace: str
    image: str

    @classmethod
    def current(cls) -> ProcessImage:
        return _current(own_pid())

    def is_local_to(self, other: ProcessImage) -> bool:
        """Return whether both are of one host, boot and pid namespace: only there can a pid of one
        be looked up by the other."""
        ground = self.host, self.boot_id, self.pid_namespace
        return ground == (other.host, other.boot_id, other.pid_namespace)

    def same_process(self, other: ProcessImage) -> bool:
        """Return whether both are, or were, programs of one process."""
        return replace(self, image="") == replace(other, image="")


@cache
def _current(pid: int) -> ProcessImage:
    return ProcessImage(
        host_name(),
        pid,
        _status_and_start(pid)[1] or "",
        boot_id(),
        pid_namespace(),
        secrets.token_hex(6),
    )


def mint_owner(image: ProcessImage) -> str:
    """Make a new owner's name, ``host|pid|nonce``. Without the nonce a container that is started
    again, with the same host name and pid 1, would have the name of its predecessor."""
    return f"{image.host}|{image.pid}|{secrets.token_hex(6)}"


def host_name() -> str:
    """Return the host name without the two characters that separate parts of a key."""
    return socket.gethostname().replace("|", "_").replace(":", "_")


def boot_id() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    with suppress(OSError):
        return f"{platform.system()}-{int(psutil.boot_time())}"
    return secrets.token_hex(6)  # Linux without /proc: no other process can look up its pid


def pid_namespace() -> str:
    """Return the inode of this process's pid namespace; ``-`` if the system has none."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "-"


def start_time(pid: int) -> str | None:
    """Return a mark of when ``pid`` started, which can only be compared with another mark of the
    same host; None: no such process, or none that can be read."""
    return _status_and_start(pid)[1]


def memory_of(pids: Iterable[int]) -> int:
    """Return the bytes of memory (RSS) of some processes of this host; those that are gone, or
    that cannot be read, count as none."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error, ValueError, OSError):
            total += int(psutil.Process(pid).memory_info().rss)
    return total


def look_at(pid: int, started: str) -> Reason:
    """Return what became of the process that had this pid and start time. Valid only in its own
    host, boot and pid namespace (``is_local_to``)."""
    # Of a pid below 1 the kernel would say that it exists: there it names a group of processes.
    if pid < 1:
        return Reason.PROCESS_GONE
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return Reason.PROCESS_GONE
    except PermissionError:  # it exists, as another user's; psutil may not see it
        pass
    zombie, now = _status_and_start(pid)
    if zombie:  # also if the pid was reused: the process that had it is gone in both cases
        return Reason.PROCESS_ZOMBIE
    # If the start time cannot be read, the process counts as running: no job is taken from it.
    return Reason.PID_REUSED if now and started and now != started else Reason.RUNNING


def _status_and_start(pid: int) -> tuple[bool, str | None]:
    """Return whether ``pid`` is a zombie, and when it started; None if that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The second field, the program's name, may hold spaces and parentheses.
            state, *fields = file.read().rpartition(")")[2].split()
        # In raw ticks since boot: psutil adds the boot time, which moves when the clock is set.
        return state in "ZX", fields[18]
    except FileNotFoundError:
        pass
    except (OSError, ValueError, IndexError):
        return False, None
    try:
        process = psutil.Process(pid)
        # psutil hashes the pid and the raw start time. Its ``create_time`` would change when the
        # clock of macOS is set.
        return process.status() == psutil.STATUS_ZOMBIE, str(hash(process))
    except (psutil.Error, ValueError, OSError):  # the last on Linux without /proc
        return False, None
