"""The process that the drill may kill: what this host and the server say of a pid, never a record
alone. A writer of the database can forge a record, and name any process in it."""

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
    """This host says that a pid is no worker of this user; the text completes "pid 7"."""


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
                f"belongs to user {process.username()}: call the drill as that user of this host"
            )
        if not is_worker_command(process.cmdline()):
            raise NotAWorker(f"is no `celery ... worker`, it is: {command_line_of(process)}")
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None
    except psutil.AccessDenied:
        raise NotAWorker("may not be looked at by this user") from None
    return process


def is_worker_command(words: Sequence[str]) -> bool:
    """Return whether a command line is that of a Celery worker, also of one that setproctitle has
    renamed (``[celeryd: w1@host:MainProcess] -active- (worker -A shop)``)."""
    names = {PurePosixPath(word).name for word in re.split(r"[\s\[\]():]+", " ".join(words))}
    return "worker" in names and any(name.startswith("celery") for name in names)


def command_line_of(process: Process) -> str:
    """Return a process's command line for a terminal, without the passwords of URLs."""
    return re.sub(r"://[^@/\s]*@", "://***@", " ".join(process.cmdline()))


def has_socket(process: Process, addresses: Collection[str]) -> bool:
    """Return whether one of the process's sockets has one of these addresses (``host:port``, as
    CLIENT LIST writes them)."""
    # psutil before 6 has the older name.
    connections = getattr(process, "net_connections", None) or process.connections
    with suppress(psutil.Error):
        sockets = {_end(str(socket.laddr[0]), socket.laddr[1]) for socket in connections("tcp")}
        return any(_end(*_split(address)) in sockets for address in addresses)
    return False


def kill_tree(process: Process) -> None:
    """Kill a process and all that it started, as the kernel does when it is short of memory. Raises
    ProcessLookupError if it is gone; psutil never signals another process that has its pid."""
    try:
        family = process.children(recursive=True)
        process.kill()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(process.pid) from None
    except psutil.AccessDenied:
        raise NotAWorker("may not be killed by this user") from None
    for child in family:
        # It has ended, or runs as another user; the worker's own end was not prevented by that.
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
