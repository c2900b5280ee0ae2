"""The HTTP server of ``superfetch metrics``: few and short connections.

``console.metrics`` makes it and serves it in a thread. If the process dies, its connections close.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ..model.log_text import one_line_each
from .listener import BUSY_ANSWER, OpenConnections, is_loopback, listening_sockets, names_loopback

logger = one_line_each(logging.getLogger(__name__))

#: Connections at a time; each has a thread, and a file descriptor.
METRICS_MAX_CONNECTIONS = 8

#: Seconds that a client has for its request, and for each part of the answer.
METRICS_WAIT_S = 5.0

#: Seconds between two checks for connections that have waited for too long.
CHECK_S = 0.5

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsServer(ThreadingMixIn, WSGIServer):
    """A server of one WSGI app, with a thread for each connection and one answer in each.

    Raises OSError where it cannot listen: mostly, at a port in use.
    """

    daemon_threads = True  # the end of its process waits for no client

    def __init__(self, app: WsgiApp, host: str, port: int) -> None:
        self.open = OpenConnections[socket.socket](METRICS_MAX_CONNECTIONS, METRICS_WAIT_S)
        listener, *others = listening_sockets(host, port)
        for other in others:
            other.close()
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()  # made by the parent, with no regard to the address's family
        self.socket = listener
        self.server_address = listener.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()
        self.set_app(_OwnNamesOnly(app) if is_loopback(self.server_name) else app)

    def process_request(self, request: Any, client_address: Any) -> None:
        excess = self.open.add(request)
        if excess is not None and excess is request:  # the metrics are slow, not the clients
            with suppress(OSError):
                excess.setblocking(False)
                excess.send(BUSY_ANSWER)
            self.shutdown_request(excess)
            return
        if excess is not None:
            _end(excess)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that have waited for too long. ``serve_forever`` calls this after each
        connection, and each ``CHECK_S``."""
        for connection in self.open.overdue():
            _end(connection)

    def shutdown_request(self, request: Any) -> None:
        self.open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error that ended a connection; the parent class prints a traceback for each
        client that left."""
        logger.debug(
            "A connection to the metrics ended with an error (address=%s).",
            client_address,
            exc_info=True,
        )

    def serve(self) -> None:
        self.serve_forever(CHECK_S)


class _Handler(WSGIRequestHandler):
    server: MetricsServer
    disable_nagle_algorithm = True
    timeout = METRICS_WAIT_S  # of each read, and of each part of the answer as a whole

    def parse_request(self) -> bool:
        """Return whether the head of the request makes sense."""
        is_whole = super().parse_request()
        self.server.open.begin(self.connection)
        return is_whole

    def log_message(self, *_: Any) -> None:
        """Log no line for each scrape."""


class _OwnNamesOnly:
    """WSGI middleware: answers only requests that name this machine."""

    def __init__(self, app: WsgiApp) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
        if names_loopback(environ.get("HTTP_HOST", "")):
            return self.app(environ, respond)
        respond("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"These metrics are served to localhost alone. Other names need --host.\n"]


def _end(connection: socket.socket) -> None:
    """End a connection; its own thread, which reads or writes, sees that and closes it."""
    with suppress(OSError):  # its client, or its thread, was faster
        connection.shutdown(socket.SHUT_RDWR)
