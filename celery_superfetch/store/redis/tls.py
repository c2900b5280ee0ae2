"""Finds out that only one side speaks TLS: a ``rediss://`` URL names a server without TLS, or a
``redis://`` URL names a server with TLS. It raises ``WrongScheme``, which says what to change.

Neither server says what is wrong: one without TLS waits for the rest of the first TLS message, one
with TLS hangs up.

The connection class in ``connections.py`` calls it while it connects, in any process and thread:
``open_socket`` opens the socket; ``note_answer`` is called after the first reply, and
``raise_if_server_speaks_tls`` after an error. They send a *probe* to the server, on a further
socket, which is closed at once. Nothing is written: if the process dies, the sockets close.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from redis import Connection, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError

#: Seconds for the first TLS handshake. If there is no answer by then, a probe finds out whether the
#: server answers without TLS. If it does not, it is only slow: a second handshake gets what is left
#: of the connection's own timeout.
HANDSHAKE_S = 2.0
PROBE_S = 1.0  # seconds that a server has to answer a probe
PING_BYTES = b"PING\r\n"
REPLY_BYTES = (b"+", b"-")  # first byte of what a plain server answers; an error counts as well
TLS_RECORDS = (b"\x15", b"\x16")  # first byte of an alert, and of a handshake

#: Servers that have answered this process: host, port, and whether TLS was used. They are not
#: probed: if one does not answer, the scheme is not the cause.
_answered: set[tuple[str, int, bool]] = set()
#: Host and port where a TLS handshake has found a server without TLS. The next connect begins with
#: a probe, without a handshake: kombu connects up to four times before it shows the error.
_plain: set[tuple[str, int]] = set()


class WrongScheme(RedisConnectionError):
    """The URL asks for TLS and the server speaks none, or the reverse."""


def open_socket(connection: Any, connect: Callable[[], Any]) -> Any:
    """Open the socket of a connection with redis-py's ``connect``. A TLS connection gets a shorter
    timeout first, then what is left of its own one.

    Raises:
        WrongScheme: the handshake has failed because the server speaks no TLS.
        Exception: what ``connect`` raises, after the connection's own timeout.
    """
    if not isinstance(connection, SSLConnection) or _key(connection) in _answered:
        return connect()
    if (connection.host, connection.port) in _plain:
        _raise_if_server_is_plain(connection, None)
    limit_s, begun = connection.socket_timeout, monotonic()
    connection.socket_timeout = min(limit_s or HANDSHAKE_S, HANDSHAKE_S)
    try:
        opened = connect()
    except (TimeoutError, ssl.SSLError, ConnectionResetError) as exc:
        _raise_if_server_is_plain(connection, exc)
        spent_s = monotonic() - begun
        if not isinstance(exc, TimeoutError) or (limit_s and spent_s >= limit_s):
            raise
        connection.socket_timeout = limit_s and limit_s - spent_s
        opened = connect()
    finally:
        connection.socket_timeout = limit_s
    opened.settimeout(limit_s)
    return opened


def note_answer(connection: Any) -> None:
    """Remember that the server of this connection has answered, with or without TLS."""
    if isinstance(connection, Connection):  # a Unix socket has no TLS
        _answered.add(_key(connection))


def _raise_if_server_is_plain(connection: Any, error: Exception | None) -> None:
    """Probe the server of a TLS connection. Raise WrongScheme if it answers without TLS; otherwise
    return, and the caller goes on with TLS."""
    address = connection.host, connection.port
    if _first_byte(connection, PING_BYTES) not in REPLY_BYTES:
        _plain.discard(address)
        return
    _plain.add(address)
    raise WrongScheme(
        f"the server at {connection.host}:{connection.port} does not speak TLS: use redis:// "
        "instead of rediss://"
    ) from error


def raise_if_server_speaks_tls(connection: Any, error: Exception) -> None:
    """Probe the server of a connection without TLS that failed with ``error``. Raise WrongScheme if
    it speaks TLS; otherwise return, and the caller raises ``error``. A server that has answered
    before is not probed."""
    is_plain = isinstance(connection, Connection) and not isinstance(connection, SSLConnection)
    if not is_plain or isinstance(error, WrongScheme) or _key(connection) in _answered:
        return
    # A server without TLS answers a PING, if only with an error.
    if _first_byte(connection, PING_BYTES) in REPLY_BYTES:
        return
    if _first_byte(connection, _client_hello()) in TLS_RECORDS:
        raise WrongScheme(
            f"the server at {connection.host}:{connection.port} speaks TLS: use rediss:// instead "
            "of redis://"
        ) from error


def _key(connection: Any) -> tuple[str, int, bool]:
    return connection.host, connection.port, isinstance(connection, SSLConnection)


def _first_byte(connection: Any, question: bytes) -> bytes:
    """Send ``question`` to the connection's server on a new socket; return the first byte of the
    answer, or nothing if there is none within ``PROBE_S``."""
    with suppress(OSError):
        address = connection.host, connection.port
        with socket.create_connection(address, PROBE_S) as probe:
            probe.sendall(question)
            return probe.recv(1)
    return b""


def _client_hello() -> bytes:
    """Return the first message of a TLS handshake."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()
