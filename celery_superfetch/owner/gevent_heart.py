"""What says that an owner lives while gevent's hub is blocked; nobody else has a pulse.

Under gevent the heart's thread is a greenlet, which a task that does not yield stops. A native
thread goes on, but may touch none of gevent's locks and sockets. So greenlets open the connection,
with all that redis-py knows of TLS and passwords, and the thread only writes and reads its bytes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ..model.facts import STUCK
from .heart import Heart

LOOK_INTERVAL = 1.0  # seconds between two looks for a connection, or for the end

REPLY_SIZE = 65536  # bytes read of a reply; what an error says is the heart's to meet and to report


def threads_are_greenlets() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class Pulse:
    def __init__(self, heart: Heart) -> None:
        original = sys.modules["gevent.monkey"].get_original
        self._heart = heart
        self._connection: Any = None  # redis-py's, connected; nobody else uses it
        self.stopped = False
        self._sleep = original("time", "sleep")
        with suppress(RedisError):  # the heart reports it, and tries again
            self.tend()
        original("_thread", "start_new_thread")(self._run, ())

    def tend(self) -> None:
        if self._connection is None:
            self._connection = self._heart.connect(self._heart.params).connection

    def _run(self) -> None:
        """The native thread: takes no lock, imports and logs nothing, and closes what it used."""
        said, due, interval = "", 0.0, self._heart.config.heartbeat_interval
        while not self.stopped:
            self._heart.look()
            state = self._heart.state
            late = monotonic() >= due and state != STUCK
            if self._connection is not None and (late or state != said):
                due = monotonic() + interval
                try:
                    self._say(self._heart.pulse(state))
                    said = state
                except OSError:
                    self._close()
            self._sleep(min(LOOK_INTERVAL, interval))
        if self._connection is not None:
            self._close()

    def _say(self, command: bytes) -> None:
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
