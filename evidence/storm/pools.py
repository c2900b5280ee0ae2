"""Grow, shrink and restart a pool by remote control while it runs jobs.

`harms.py` calls it. The checker excuses nothing for these harms: no job may run twice for them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from support.workers.worker import Worker

from .fleet import PLACES, Fleet

#: Number of processes by which a pool grows; how often in a row; seconds until it shrinks (and
#: until it grows again); and seconds to wait for the reply to a command.
GROWTH, TIMES, GROWN, ANSWER = 2, 3, (0.3, 2.0), 3.0
#: The place of the pool: the prefork pool that neither scales itself nor replaces its processes.
[PLACE] = [name for name, spec in PLACES.items() if spec.pool == "prefork" and not spec.arguments]


class Storm(Protocol):
    """The part of `harms.Harms` that is used here: it writes harms, and calls a function later."""

    def write(self, kind: str, workers: list[str], began: float, **facts: Any) -> None: ...

    def after(self, seconds: tuple[float, float], act: Callable[[], Any]) -> None: ...


class Pools:
    """The remote control of one place's pool."""

    def __init__(self, fleet: Fleet, storm: Storm) -> None:
        self.fleet, self.storm = fleet, storm

    def grow(self, times: int = TIMES) -> bool:
        """Grow the pool, and shrink it by as many processes a little later, also if they run jobs.
        Repeat this so many times. Return False if the pool is too large, or did not grow."""
        worker = self.fleet.workers[PLACE]
        if len(worker.children()) > GROWTH + PLACES[PLACE].size:
            return False
        if not self._told("pool_grow", n=GROWTH):
            return False

        def shrink() -> None:
            if worker is self.fleet.workers[PLACE]:
                self._told("pool_shrink", n=GROWTH)
            if times > 1:
                self.storm.after(GROWN, partial(self.grow, times - 1))

        self.storm.after(GROWN, shrink)
        return True

    def restart(self) -> bool:
        """Replace each process when its job has ended. Return whether the worker accepted."""
        return self._told("pool_restart")

    def _told(self, command: str, **arguments: Any) -> bool:
        """Send a remote control command to the worker, and write its reply to the history.

        Return whether the worker accepted it. False: there was no worker or no reply, or the worker
        refused (it cannot shrink while all processes are busy).
        """
        began, worker = time.time(), self.fleet.workers[PLACE]
        node = node_of(worker)
        if PLACE in self.fleet.due or not worker.alive() or not node:
            return False
        try:
            answers = self.fleet.app.control.broadcast(
                command, arguments, [node], reply=True, timeout=ANSWER, limit=1
            )
        except Exception:  # the Redis server is down, or the network is
            return False
        if not answers:
            return False
        [answer] = answers[0].values()
        self.storm.write(command, [], began, told=[worker.name], answer=answer)
        return "ok" in answer


def node_of(worker: Worker) -> str | None:
    """Return a worker's node name for remote control, or None until it is ready."""
    ready = re.search(r"(\S+@\S+) ready\.", worker.log())
    return ready and ready[1]
