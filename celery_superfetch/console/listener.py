"""Bounds of the console's HTTP listeners: the page and ``superfetch metrics``.

A client can open connections and send nothing, or send and read a byte at a time. Without bounds
each such connection costs a file descriptor for as long as the client likes.
"""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic
from typing import Generic, TypeVar
from urllib.parse import urlsplit

C = TypeVar("C")

#: The answer of a listener all of whose connections have a request that is being answered.
BUSY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)

#: Connections that the kernel accepts before the listener does.
LISTEN_BACKLOG = 64

#: Errors of an address that a name has and this machine has not: ``localhost`` is ``::1`` as well,
#: also in a container without IPv6.
NOT_OF_THIS_MACHINE = errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT


class OpenConnections(Generic[C]):
    """The connections of one listener, at most ``max_count`` of them, and which to close.

    A connection *waits* while its client has to do something: send a request, or read an answer. It
    may do so for ``wait_s`` seconds. If a client connects to a full listener, the connection that
    has waited for longest makes room, so that a client which sends its request at once is answered
    however many slow ones there are.
    """

    def __init__(self, max_count: int, wait_s: float) -> None:
        self.max_count, self.wait_s = max_count, wait_s
        self._lock = threading.Lock()
        #: Connection -> when it has waited for too long (monotonic s); the first waits longest.
        self._deadline_by_waiting: dict[C, float] = {}
        self._being_answered: set[C] = set()

    def __len__(self) -> int:
        return len(self._deadline_by_waiting) + len(self._being_answered)

    def add(self, connection: C) -> C | None:
        """Add a new connection, which waits. Returns a connection to close, to keep the number: the
        one that has waited for longest, or the new one where no other waits."""
        with self._lock:
            excess = None
            if len(self) >= self.max_count:
                excess = next(iter(self._deadline_by_waiting), connection)
                self._deadline_by_waiting.pop(excess, None)
            if excess is not connection:
                self._deadline_by_waiting[connection] = monotonic() + self.wait_s
            return excess

    def begin(self, connection: C) -> None:
        """Record that the listener has a request, or that its client reads again."""
        with self._lock:
            if self._deadline_by_waiting.pop(connection, None) is not None:
                self._being_answered.add(connection)

    def end(self, connection: C) -> None:
        """Record that the answer is sent, or that its client does not read: the connection
        waits."""
        with self._lock:
            if connection in self._being_answered:
                self._being_answered.remove(connection)
                self._deadline_by_waiting[connection] = monotonic() + self.wait_s

    def remove(self, connection: C) -> None:
        with self._lock:
            self._deadline_by_waiting.pop(connection, None)
            self._being_answered.discard(connection)

    def overdue(self) -> list[C]:
        """Return, and forget, the connections that have waited for too long."""
        with self._lock:
            now = monotonic()
            late = [each for each, until in self._deadline_by_waiting.items() if until <= now]
            for connection in late:
                del self._deadline_by_waiting[connection]
            return late


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen at each address of the host that this machine has.

    Raises OSError where that is impossible: mostly, at a port in use, or if no host can have that
    name.

    The accepted connections send without delay. With Nagle's algorithm the body of an answer would
    wait for the client's acknowledgement of the head: 40 ms.
    """
    try:
        found = socket.getaddrinfo(
            host or None,
            port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
            flags=socket.AI_PASSIVE,
        )
    except UnicodeError as exc:  # an empty label ("web..local"), or one of 64 characters
        raise OSError(f"{host!r} is not a host name or address: {exc}") from exc
    addresses = dict.fromkeys((family, address) for family, *_, address in found)
    listeners = list[socket.socket]()
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listener = socket.create_server(address, family=family, backlog=LISTEN_BACKLOG)
            except OSError as exc:
                if exc.errno not in NOT_OF_THIS_MACHINE:
                    raise
                absent = exc
                continue
            listeners.append(listener)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited
        if absent is not None and not listeners:
            raise absent
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach the address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(host_header: str) -> bool:
    """Return whether a request's ``Host`` names this machine.

    A listener on loopback without a token is kept from other machines by its address alone; and any
    site can have a name that leads a browser of this machine there (DNS rebinding).
    """
    host = ""
    with suppress(ValueError):  # a header that is no host at all
        host = urlsplit(f"//{host_header}").hostname or ""
    return is_loopback(host)
