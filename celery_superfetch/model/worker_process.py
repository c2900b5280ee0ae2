"""Checks that a pid in an owner's record is really a worker that `superfetch drill` may kill, and
kills it. (The drill kills a worker on purpose, to show that its jobs are recovered.) The record
alone is not enough: any client that can write to Redis can forge one, and name any process in it.

``console/drill.py`` calls ``worker_at`` and ``has_socket``, and the command ``kill_tree``, in the
command's own process. If that dies in ``kill_tree``, the worker is dead and some of its pool
processes may still run; these end when they find that their parent is gone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import PurePosixPath

import psutil
from psutil import Process as Process

from .process import ProcessImage, start_time


class NotAWorker(Exception):
    """The process may not be killed, mostly since it is no worker of this user; the text continues
    a sentence that begins with "pid 7"."""


def worker_at(image: ProcessImage) -> Process:
    """Return the process that a record of this host names. Raises ProcessLookupError if it is gone,
    and NotAWorker if this host contradicts the record."""
    pid = image.pid
    if pid < 1 or start_time(pid) != image.start_time:
        raise ProcessLookupError(pid)
    try:
        process = Process(pid)
        if pid == 1:
            raise NotAWorker("is the first process of this host")
        if pid in {os.getpid(), *(parent.pid for parent in Process().parents())}:
            raise NotAWorker("is this command, or a process that started it")
        if set(process.uids()) != {os.getuid()}:
            raise NotAWorker(
                f"belongs to user {process.username()}: run the drill as that user on this host"
            )
        if not is_worker_command(process.cmdline()):
            raise NotAWorker(f"is not a `celery ... worker` process: {command_line_of(process)}")
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None
    except psutil.AccessDenied:
        raise NotAWorker("cannot be inspected by this user") from None
    return process


def is_worker_command(words: Sequence[str]) -> bool:
    """Return whether a command line may be that of a Celery worker: it has the word ``worker``, and
    a name that begins with ``celery``. So has one that setproctitle has renamed (``[celeryd:
    w1@host:MainProcess] -active- (worker -A shop)``)."""
    names = {PurePosixPath(word).name for word in re.split(r"[\s\[\]():]+", " ".join(words))}
    return "worker" in names and any(name.startswith("celery") for name in names)


def command_line_of(process: Process) -> str:
    """Return a process's command line without the users and passwords in URLs. The caller escapes
    it for the terminal."""
    return re.sub(r"://[^@/\s]*@", "://***@", " ".join(process.cmdline()))


def has_socket(process: Process, addresses: Collection[str]) -> bool:
    """Return whether one of the process's sockets has one of these addresses (``host:port``, as
    CLIENT LIST writes them): then the server confirms that the process is the owner. False also if
    this user may not see the sockets."""
    # psutil before 6 has the older name.
    connections = getattr(process, "net_connections", None) or process.connections
    with suppress(psutil.Error):
        sockets = {_end(str(socket.laddr[0]), socket.laddr[1]) for socket in connections("tcp")}
        return any(_end(*_split(address)) in sockets for address in addresses)
    return False


def kill_tree(process: Process) -> None:
    """Kill a process and all that it started, as at the end of a container. Raises
    ProcessLookupError if it is gone; psutil never signals another process that has its pid."""
    try:
        family = process.children(recursive=True)
        process.kill()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(process.pid) from None
    except psutil.AccessDenied:
        raise NotAWorker("cannot be killed by this user") from None
    for child in family:
        # If this one has ended already, or runs as another user, the worker itself is dead all the
        # same.
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            child.kill()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def _end(host: str, port: int) -> tuple[str, int]:
    """Return an address in one spelling; IPv4 within IPv6 is IPv4."""
    with suppress(ValueError):
        ip = ip_address(host)
        return str(getattr(ip, "ipv4_mapped", None) or ip), port
    return host, port
