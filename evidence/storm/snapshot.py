"""A Redis server that comes back as it was a minute ago: an operator restores a snapshot."""

from __future__ import annotations

import shutil
import time

from .fleet import Fleet
from .pools import Storm

#: Seconds by which a snapshot is old when the server comes back from it, and within which there is
#: one such harm: while one is pending, part of what is sent may be lost.
AGE_S, ONCE_IN_S = 60.0, 300.0
#: The directory of the append-only file, which has everything that the server has confirmed.
FILES = "appendonlydir"


class Snapshots:
    """Takes snapshots of the primary and lets it come back from them."""

    def __init__(self, fleet: Fleet, storm: Storm, until: float) -> None:
        self.fleet, self.storm = fleet, storm
        self._until, self._next = until, 0.0

    def take(self) -> bool:
        """Copy the files of the primary, to which it comes back a minute later; False if another
        snapshot was taken lately, or the storm is over before that."""
        now = time.monotonic()
        if now < self._next or now + AGE_S > self._until:
            return False
        self._next = now + ONCE_IN_S
        primary, taken = self.fleet.servers.primary, time.time()
        copy = primary.dir / f"snapshot-{taken:.0f}"
        primary.pause()  # the copy is of one moment
        try:
            shutil.copytree(primary.dir / FILES, copy)
        finally:
            primary.resume()

        def come_back() -> None:
            began, servers = time.time(), self.fleet.servers
            for server in servers.servers:
                server.kill()
                shutil.rmtree(server.dir / FILES, ignore_errors=True)
            copy.rename(servers.primary.dir / FILES)  # raises if anything is left there
            servers.primary.start()
            for replica in servers.replicas:
                replica.start()
            self.storm.write(
                "server back from a snapshot",
                self.fleet.names(),
                began,
                cut=True,
                back=round(taken, 4),
            )

        self.storm.after((AGE_S, AGE_S), come_back)
        return True
