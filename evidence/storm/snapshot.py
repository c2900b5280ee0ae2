"""Bring the Redis server back as it was a minute ago, as if an operator restored a snapshot.

`harms.py` calls it. The history says when the snapshot was taken (``back``), so that the checker
knows which jobs may be lost.
"""

from __future__ import annotations

import shutil
import time

from .fleet import Fleet
from .pools import Storm

#: Age of a snapshot, in seconds, when the server comes back from it; and seconds from one snapshot
#: to the next, at least. Jobs that are sent between a snapshot and the return may be lost: if
#: snapshots were frequent, the checker would excuse the loss of most jobs.
AGE_S, ONCE_IN_S = 60.0, 300.0
#: The directory of the append-only file. It has all writes that the server has confirmed.
FILES = "appendonlydir"


class Snapshots:
    """The snapshots of the primary, and the returns from them.

    Arguments:
        fleet: its primary is copied and brought back.
        storm: writes the harm, and calls a function later.
        until: when the storm is over, by the monotonic clock.
    """

    def __init__(self, fleet: Fleet, storm: Storm, until: float) -> None:
        self.fleet, self.storm = fleet, storm
        self._until, self._next = until, 0.0

    def take(self) -> bool:
        """Copy the files of the primary, and bring it back to them a minute later. Return False if
        the last snapshot is too recent, or the storm ends before that."""
        now = time.monotonic()
        if now < self._next or now + AGE_S > self._until:
            return False
        self._next = now + ONCE_IN_S
        primary, taken = self.fleet.servers.primary, time.time()
        copy = primary.dir / f"snapshot-{taken:.0f}"
        primary.pause()  # if it wrote meanwhile, the copy would be of no single moment
        try:
            shutil.copytree(primary.dir / FILES, copy)
        finally:
            primary.resume()

        def come_back() -> None:
            """Kill all servers, replace the files of the primary, and start all servers again."""
            began, servers = time.time(), self.fleet.servers
            for server in servers.servers:
                server.kill()
                shutil.rmtree(server.dir / FILES, ignore_errors=True)
            copy.rename(servers.primary.dir / FILES)  # raises OSError if files are left there
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
