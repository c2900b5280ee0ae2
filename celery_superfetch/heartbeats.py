"""The heart of an owner: a thread and a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any, Protocol

from redis import ConnectionPool, Redis

from .config import Config

logger = logging.getLogger(__name__)

#: Seconds between two tries while heartbeats fail.
RETRY_INTERVAL = 1.0

#: Seconds the server has to answer a heartbeat at least, however short the interval.
SHORTEST_WAIT = 1.0


class Owner(Protocol):
    """Whose heart it is."""

    config: Config

    @property
    def owner(self) -> str:
        """Its identity."""

    def heartbeat(self) -> object:
        """One heartbeat; raises when it was not heard."""

    def said_to_stop(self) -> bool:
        """Whether there is something to say before the next heartbeat is due."""


class Pulse(Protocol):
    """What goes on where this thread is a greenlet and its hub is blocked."""

    def tend(self) -> None:
        """Mend it if it broke."""

    def stop(self) -> None:
        """End it."""


class Heartbeats(threading.Thread):
    """Sends heartbeats until it is stopped, whatever else the process is busy with."""

    def __init__(self, owner: Owner, pulse: Pulse | None = None) -> None:
        super().__init__(name="superfetch-heartbeat", daemon=True)
        self.owner = owner
        self.pulse = pulse
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Send no more; does not wait for one that is under way."""
        self._stopped.set()
        if self.pulse is not None:
            self.pulse.stop()

    def run(self) -> None:
        config = self.owner.config
        failing, due = False, monotonic() + config.heartbeat_interval
        # Short waits: a signal handler can set a flag, but must not touch this thread's lock.
        while not self._stopped.wait(min(RETRY_INTERVAL, config.heartbeat_interval)):
            if not (self.owner.said_to_stop() or failing or monotonic() >= due):
                continue
            due = monotonic() + config.heartbeat_interval
            try:
                self.owner.heartbeat()
                if self.pulse is not None:
                    self.pulse.tend()
            except Exception as exc:  # whatever it is, an owner without a heart is dead
                if not failing:
                    logger.warning(
                        "Heartbeat of owner %s failed: %r. Retrying every %g s; other hosts take "
                        "this process for dead after %g s of silence.",
                        self.owner.owner,
                        exc,
                        RETRY_INTERVAL,
                        config.owner_ttl,
                    )
                failing = True
            else:
                if failing:
                    logger.info("Heartbeat of owner %s is heard again.", self.owner.owner)
                failing = False


def heart_client(params: Mapping[str, Any], heartbeat_interval: float) -> Redis:
    """A client with one connection: a full pool, or a reply that waits, must not stop a heart.

    Arguments:
        params: arguments of ``redis.ConnectionPool``.
        heartbeat_interval: seconds; without a limit to its waits, one half-open connection
            would silence the owner for ever.
    """
    own = {**params, "max_connections": 2}
    wait = max(SHORTEST_WAIT, heartbeat_interval)
    if "path" not in own and not own.get("socket_connect_timeout"):
        own["socket_connect_timeout"] = wait
    own["socket_timeout"] = own.get("socket_timeout") or wait
    return Redis(connection_pool=ConnectionPool(**own), single_connection_client=True)
