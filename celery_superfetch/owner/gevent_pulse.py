"""Heartbeats under gevent while the hub is blocked.

The heartbeat thread makes a ``GeventPulse``. Under gevent the heartbeat thread is only a greenlet,
and a task that does not yield to gevent's loop (the *hub*) stops it. The native thread of
``GeventPulse`` continues, but it must not use gevent's locks and sockets. So the heartbeat thread
opens the connection, by redis-py, and the native thread only writes and reads bytes on the native
socket beneath it. The native thread ends when the heartbeat thread has ended. If the process dies,
no heartbeat comes any more, and a peer declares the owner dead.

Names of other projects that they do not document follow; a test checks each.

Foreign names:

gevent
    send heartbeats while its hub is blocked: socket:socket._sock ssl:SSLSocket._sslobj
redis
    find the socket of the heartbeat's connection: connection:Connection._sock
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from ..model.owner_record import HUNG, RETRY_INTERVAL

if TYPE_CHECKING:
    from .heartbeat import HeartbeatSession

WARM_INTERVAL = RETRY_INTERVAL  # seconds between two uses that keep a connection from being idle
#: Bytes that are read of a reply. Only the first byte matters: ``-`` begins an error. The error is
#: not logged here: the heartbeat thread gets the same error and logs it.
REPLY_SIZE = 65536


def threads_are_greenlets() -> bool:
    """Return whether gevent has patched ``threading``."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class GeventPulse:
    """A native thread and its connection, by which an owner's heartbeats are sent also while the
    hub is blocked. It checks the worker's event loop, in place of the heartbeat thread."""

    def __init__(self, session: HeartbeatSession, is_stopped: Callable[[], bool]) -> None:
        original = sys.modules["gevent.monkey"].get_original
        self._session = session
        self._is_stopped = is_stopped  # returns whether the heartbeat thread sends no more
        #: redis-py's connection. The heartbeat thread opens and sets it. From then on only the
        #: native thread uses it, and sets it to None when it has closed it.
        self._connection: Any = None
        self._sleep = original("time", "sleep")
        with suppress(RedisError):  # the heartbeat thread reports it, and tries again
            self.connect_if_needed()
        original("_thread", "start_new_thread")(self._run, ())

    def connect_if_needed(self) -> None:
        """Connect if there is no connection; called in the heartbeat thread."""
        if self._connection is None:
            self._connection = self._session.connect(self._session.params).connection

    def _run(self) -> None:
        """Send heartbeats in the native thread, which takes no lock, imports and logs nothing, and
        closes the connection that it used."""
        reported, due, interval = "", 0.0, self._session.config.heartbeat_interval
        while not self._is_stopped():
            self._session.check_loop()
            state = self._session.state
            # An owner whose event loop hangs reports that once and then sends no heartbeat, so that
            # peers declare it dead and recover its jobs.
            is_due = monotonic() >= due and state != HUNG
            if self._connection is not None and (is_due or state != reported):
                due = monotonic() + interval
                try:
                    self._send(self._session.pulse(state))
                    reported = state
                except OSError:
                    self._close()
                    # Perhaps the server closes idle connections. While the hub is blocked, no new
                    # connection can be opened, so the next connection is used often enough not to
                    # count as idle.
                    interval = min(interval, WARM_INTERVAL)
            self._sleep(min(RETRY_INTERVAL, interval))
        if self._connection is not None:
            self._close()

    def _send(self, command: bytes) -> None:
        """Send a command and wait for its reply. Raise OSError if the reply is late, is missing, or
        is an error."""
        gevent_socket = self._connection._sock
        native, tls = gevent_socket._sock, getattr(gevent_socket, "_sslobj", None)
        native.settimeout(self._connection.socket_timeout)
        (tls.write if tls else native.sendall)(command)
        reply = (tls.read if tls else native.recv)(REPLY_SIZE)
        if not reply or reply.startswith(b"-"):
            raise ConnectionResetError

    def _close(self) -> None:
        self._connection._sock._sock.close()
        self._connection = None
