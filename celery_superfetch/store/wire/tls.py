"""TLS on one side only: a ``rediss://`` URL of a plain server, or a plain URL of a TLS server.

A plain server waits for the rest of the first TLS message, and a TLS server hangs up: neither says
why. Each is found out while the connection is made, and raises ``WrongScheme``.
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

#: Seconds after which a TLS handshake without an answer is suspected. A slow server then gets the
#: rest of the connection's own timeout, by a new handshake.
HANDSHAKE_S = 2.0
PROBE_S = 1.0  # seconds that a server has to answer a probe
PING = b"PING\r\n"
REPLIES = (b"+", b"-")  # first byte of what a plain server answers; an error counts as well
TLS_RECORDS = (b"\x15", b"\x16")  # first byte of an alert, and of a handshake

#: Addresses that have answered this process, each with whether by TLS. One that has is not probed:
#: its silence is no wrong scheme.
_answered: set[tuple[str, int, bool]] = set()
#: Addresses where a TLS handshake found a plain server. A later one begins with a probe: kombu
#: connects up to four times before it says what is wrong.
_plain: set[tuple[str, int]] = set()


class WrongScheme(RedisConnectionError):
    """The URL asks for TLS and the server speaks none, or the reverse."""


def open_socket(connection: Any, connect: Callable[[], Any]) -> Any:
    """Call ``connect``, which returns the socket of a connection, with TLS after the handshake.

    Raises WrongScheme, soon, where the handshake fails because the server speaks no TLS; otherwise
    what ``connect`` raises, after the connection's own timeout.
    """
    if not isinstance(connection, SSLConnection) or _key(connection) in _answered:
        return connect()
    if (connection.host, connection.port) in _plain:
        _refuse_plain_server(connection, None)
    limit_s, begun = connection.socket_timeout, monotonic()
    connection.socket_timeout = min(limit_s or HANDSHAKE_S, HANDSHAKE_S)
    try:
        opened = connect()
    except (TimeoutError, ssl.SSLError, ConnectionResetError) as exc:
        _refuse_plain_server(connection, exc)
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
    """Remember that this address has answered, by TLS or without, as the connection speaks."""
    if isinstance(connection, Connection):  # a Unix socket has no TLS
        _answered.add(_key(connection))


def _refuse_plain_server(connection: Any, error: Exception | None) -> None:
    """Raise WrongScheme if the server of a TLS connection answers without TLS."""
    address = connection.host, connection.port
    if _first_byte(connection, PING) not in REPLIES:
        _plain.discard(address)
        return
    _plain.add(address)
    raise WrongScheme(
        f"the server at {connection.host}:{connection.port} does not speak TLS: use redis:// "
        "instead of rediss://"
    ) from error


def refuse_tls_server(connection: Any, error: Exception) -> None:
    """Raise WrongScheme if a connection without TLS failed with ``error`` because its server, which
    has never answered this process, speaks TLS."""
    is_plain = isinstance(connection, Connection) and not isinstance(connection, SSLConnection)
    if not is_plain or isinstance(error, WrongScheme) or _key(connection) in _answered:
        return
    # A plain server, whatever else is wrong with it, answers a PING, and is silent to a handshake.
    if _first_byte(connection, PING) in REPLIES:
        return
    if _first_byte(connection, _client_hello()) in TLS_RECORDS:
        raise WrongScheme(
            f"the server at {connection.host}:{connection.port} speaks TLS: use rediss:// instead "
            "of redis://"
        ) from error


def _key(connection: Any) -> tuple[str, int, bool]:
    return connection.host, connection.port, isinstance(connection, SSLConnection)


def _first_byte(connection: Any, question: bytes) -> bytes:
    """Return the first byte that the connection's server answers to a question on a socket of its
    own; empty where it says nothing within ``PROBE_S``, hangs up, or cannot be reached."""
    with suppress(OSError):
        address = connection.host, connection.port
        with socket.create_connection(address, PROBE_S) as probe:
            probe.sendall(question)
            return probe.recv(1)
    return b""


def _client_hello() -> bytes:
    """Return the message with which a client begins TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()
