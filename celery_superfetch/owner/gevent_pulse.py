"""Heartbeats under gevent while the hub is blocked.

The heartbeat thread makes it. There that thread is a greenlet, which a task that does not yield
stops. This module's native thread goes on, but may touch none of gevent's locks and sockets. So the
heartbeat thread makes the connection, by redis-py, and the native thread only writes and reads
bytes there. The native thread ends when the heartbeat thread has ended. If the process dies, no
heartbeat comes any more, and a peer declares the owner dead.

Foreign names:

gevent
    send heartbeats while its hub is blocked: monkey:get_original(mod_name,item_name)
        socket:socket._sock ssl:SSLSocket._sslobj
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

from ..model.facts import HUNG, RETRY_INTERVAL

if TYPE_CHECKING:
    from .heartbeat import HeartbeatSession

WARM_INTERVAL = RETRY_INTERVAL  # seconds between two uses that keep a connection from being idle
#: Bytes that are read of a reply. Only its first one counts: whether it is an error, which is not
#: logged here, since the heartbeat thread gets the same one.
REPLY_SIZE = 65536


def threads_are_greenlets() -> bool:
    """Return whether gevent has patched ``threading``."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class GeventPulse:
    """The native thread and its connection, by which an owner's heartbeats are sent also while the
    hub is blocked. It also checks the loop, in place of the heartbeat thread."""

    def __init__(self, session: HeartbeatSession, is_stopped: Callable[[], bool]) -> None:
        original = sys.modules["gevent.monkey"].get_original
        self._session = session
        self._is_stopped = is_stopped  # whether the heartbeat thread sends no more
        #: redis-py's. The heartbeat thread sets it, connected; from then on the native thread alone
        #: uses it, and sets it to None when it has closed it.
        self._connection: Any = None
        self._sleep = original("time", "sleep")
        with suppress(RedisError):  # the heartbeat thread reports it, and tries again
            self.tend()
        original("_thread", "start_new_thread")(self._run, ())

    def tend(self) -> None:
        """Connect if there is no connection; called in the heartbeat thread."""
        if self._connection is None:
            self._connection = self._session.connect(self._session.params).connection

    def _run(self) -> None:
        """The native thread: takes no lock, imports and logs nothing, and closes what it used."""
        reported, due, interval = "", 0.0, self._session.config.heartbeat_interval
        while not self._is_stopped():
            self._session.check_loop()
            state = self._session.state
            is_due = monotonic() >= due and state != HUNG
            if self._connection is not None and (is_due or state != reported):
                due = monotonic() + interval
                try:
                    self._send(self._session.pulse(state))
                    reported = state
                except OSError:
                    self._close()
                    # Perhaps the server closes idle connections. While the hub is blocked no new
                    # one can be opened, so the next one is used often enough not to count as idle.
                    interval = min(interval, WARM_INTERVAL)
            self._sleep(min(RETRY_INTERVAL, interval))
        if self._connection is not None:
            self._close()

    def _send(self, command: bytes) -> None:
        """Send a command and wait for its reply: OSError if it is late, or none, or says no."""
        gevents = self._connection._sock
        native, tls = gevents._sock, getattr(gevents, "_sslobj", None)
        native.settimeout(self._connection.socket_timeout)
        (tls.write if tls else native.sendall)(command)
        reply = (tls.read if tls else native.recv)(REPLY_SIZE)
        if not reply or reply.startswith(b"-"):
            raise ConnectionResetError

    def _close(self) -> None:
        self._connection._sock._sock.close()
        self._connection = None
