"""The pulse: what says that an owner lives while gevent's hub is blocked. Nobody else has one.

Under gevent's monkey patching threads are greenlets, the heart's thread as well: a task that does
not yield stops it. A native thread goes on, but may touch nothing that is gevent's: its locks
break when threads share them (even those of ``import`` and of logging), and its sockets belong to
the hub they were made under. So greenlets open the connection, with all that redis-py knows of
TLS and passwords, and hand it over; the native thread only writes and reads its bytes.
"""

from __future__ import annotations

import contextlib
import sys
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from ..model.facts import STUCK
from .heart import Heart

#: Seconds between two looks for a connection, or for the end.
LOOK_INTERVAL = 1.0

#: Bytes read of a reply; what an error says is the heart's to meet and to report.
REPLY_SIZE = 65536


def threads_are_greenlets() -> bool:
    """Whether gevent has patched the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class Pulse:
    """Says at each interval that an owner lives, whatever the greenlets do."""

    def __init__(self, heart: Heart) -> None:
        original = sys.modules["gevent.monkey"].get_original
        self._heart = heart
        self._interval = heart.config.heartbeat_interval
        self._wire: _Wire | None = None
        self._stopped = False
        self._sleep = original("time", "sleep")
        with contextlib.suppress(RedisError):  # the heart reports it, and tries again
            self.tend()
        original("_thread", "start_new_thread")(self._run, ())

    def tend(self) -> None:
        """Connect again if the connection broke.

        Raises:
            redis.exceptions.RedisError: not now.
        """
        if self._wire is None:
            self._wire = _Wire(self._heart.connect().connection)

    def stop(self) -> None:
        """Say no more."""
        self._stopped = True

    def _run(self) -> None:
        """The native thread: takes no lock, imports and logs nothing, and closes what it used."""
        said, due = "", 0.0
        while not self._stopped:
            self._heart.look()
            state = self._heart.state
            late = monotonic() >= due and state != STUCK
            if self._wire is not None and (late or state != said):
                due = monotonic() + self._interval
                try:
                    self._wire.say(self._heart.pulse())
                    said = state
                except OSError:
                    self._wire.close()
                    self._wire = None
            self._sleep(min(LOOK_INTERVAL, self._interval))
        if self._wire is not None:
            self._wire.close()


class _Wire:
    """The bytes of a connected redis-py connection, without redis-py and without gevent."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection  # keeps alive what is taken from it
        gevents = connection._sock
        native = gevents._sock
        native.settimeout(connection.socket_timeout)
        tls = getattr(gevents, "_sslobj", None)
        self._write = tls.write if tls else native.sendall
        self._read = tls.read if tls else native.recv
        self.close = native.close

    def say(self, command: bytes) -> None:
        """Send a command and wait for its reply.

        Raises:
            OSError: the connection is gone, the reply is late, or it says no (a server that was
                made a replica).
        """
        self._write(command)
        reply = self._read(REPLY_SIZE)
        if not reply or reply.startswith(b"-"):
            raise ConnectionResetError
