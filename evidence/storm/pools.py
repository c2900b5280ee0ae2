"""Pools that grow, shrink and restart by command while they run jobs: harms that excuse nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from support.workers.worker import Worker

from .fleet import PLACES, Fleet

#: Processes by which a pool grows, how often, seconds until it shrinks (and grows) again, and for
#: an answer to either.
GROWTH, TIMES, GROWN, ANSWER = 2, 3, (0.3, 2.0), 3.0
#: The place of the pool: the one of processes that has no size or end of its own.
[PLACE] = [name for name, spec in PLACES.items() if spec.pool == "prefork" and not spec.arguments]


class Storm(Protocol):
    """What writes harms down, and does something later."""

    def write(self, kind: str, workers: list[str], began: float, **facts: Any) -> None: ...

    def after(self, seconds: tuple[float, float], act: Callable[[], Any]) -> None: ...


class Pools:
    """Tells the worker of one place to change its pool."""

    def __init__(self, fleet: Fleet, storm: Storm) -> None:
        self.fleet, self.storm = fleet, storm

    def grow(self, times: int = TIMES) -> bool:
        """Let the pool grow, and shrink by as much a little later, whatever it runs then; again."""
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
        """Let each process be replaced when its job has ended."""
        return self._told("pool_restart")

    def _told(self, command: str, **arguments: Any) -> bool:
        """Whether the worker does what it is told. One that cannot (all processes are busy) has
        done what it could."""
        began, worker = time.time(), self.fleet.workers[PLACE]
        node = node_of(worker)
        if PLACE in self.fleet.due or not worker.alive() or not node:
            return False
        try:
            answers = self.fleet.app.control.broadcast(
                command, arguments, [node], reply=True, timeout=ANSWER, limit=1
            )
        except Exception:  # the server is away
            return False
        if not answers:
            return False
        [answer] = answers[0].values()
        self.storm.write(command, [], began, told=[worker.name], answer=answer)
        return "ok" in answer


def node_of(worker: Worker) -> str | None:
    """The name by which a worker is told something, once it listens."""
    ready = re.search(r"(\S+@\S+) ready\.", worker.log())
    return ready and ready[1]
