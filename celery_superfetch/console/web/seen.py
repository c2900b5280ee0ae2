"""What the page shows, read from the server; the same for all who look within a second."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, TypeVar

from celery import Celery
from redis.exceptions import RedisError

from ... import DeadSet
from ...inspector import PATIENCE, Inspector
from ...model.dead_job import DeadJob, utc
from ..health import judge
from ..jobs import Look, Which
from .hiding import Hiding, parameters_of

T = TypeVar("T")
Question = Callable[[Inspector], T]

#: Jobs on a page of the dead set.
PAGE = 50

#: Jobs in flight that are shown of a state.
JOBS = 100

#: What is shown is as old as this, or this many times what it took, before it is read anew.
FRESH, SHARE = 1.0, 4.0


class Seen:
    """Reads for the page. From a server that fails it comes back with a new connection."""

    def __init__(self, app: Celery, hide: Iterable[str]) -> None:
        self.app = app
        self._hiding = Hiding(hide)
        self._lock = threading.Lock()
        self._inspector: Inspector | None = None
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}
        self._failed: tuple[float, Exception | None] = (0.0, None)

    def _ask(self, question: Question[T]) -> T:
        try:
            inspector = self._inspector
            if inspector is None:
                inspector = self._inspector = Inspector.of(self.app, timeout=PATIENCE)
            return question(inspector)
        except RedisError as exc:
            self._inspector = None  # the next server may be found elsewhere
            self._failed = monotonic() + FRESH, exc
            raise

    def _kept(self, name: str, question: Question[dict[str, Any]]) -> dict[str, Any]:
        """What was answered a moment ago, or is now: a thousand browsers ask no more than one."""
        with self._lock:
            begun = monotonic()
            until, answer = self._known.get(name, (0.0, {}))
            if begun >= until:
                failed, exc = self._failed
                if exc and begun < failed:  # whoever has waited behind it need not fail by himself
                    raise exc
                answer = self._ask(question)
                took = monotonic() - begun
                self._known[name] = begun + took + max(FRESH, SHARE * took), answer
            return answer

    def clear(self) -> None:
        """Look anew: who has changed something wants to see it."""
        with self._lock:
            self._known.clear()

    def overview(self) -> dict[str, Any]:
        """An overview as it is ``Judged``."""
        return self._kept("overview", lambda inspector: judge(inspector)._asdict())

    def jobs(self, state: str) -> dict[str, Any]:
        """The first jobs in flight of this state."""
        return self._kept(state, lambda inspector: Look(inspector, Which(state)).first(JOBS))

    def dead(self, first: int) -> dict[str, Any]:
        """A page of the dead set, from the ``first`` newest on."""

        def read(dead: DeadSet) -> dict[str, Any]:
            size, jobs = len(dead), [*map(self._hidden, dead.page(first, PAGE))]
            following = first + PAGE if first + PAGE < size else None
            now = utc(dead.database.server_time() / 1000)
            return {"jobs": jobs, "size": size, "next": following, "now": now}

        return self.dead_set(read)

    def dead_job(self, id: str) -> dict[str, Any]:
        """One job, and the time ``now``; raises JobNotFound."""

        def read(dead: DeadSet) -> dict[str, Any]:
            now = utc(dead.database.server_time() / 1000)
            return {**self._hidden(dead.get(id)), "now": now}

        return self.dead_set(read)

    def dead_set(self, use: Callable[[DeadSet], T]) -> T:
        """A dead set for each use: it counts the failures of the result backend."""
        return self._ask(lambda inspector: use(DeadSet(self.app, inspector.database.client)))

    def _hidden(self, job: DeadJob) -> dict[str, Any]:
        """A job without its secrets; and without its payload, which has them all."""
        record = job.as_dict()
        del record["payload"]
        args = self._hiding.hide(record["args"], parameters_of(self.app, job.task))
        return {**record, "args": args, "kwargs": self._hiding.hide(record["kwargs"])}
