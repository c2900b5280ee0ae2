"""What the page shows, read from the server; the same for all who look within a second."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from celery import Celery
from redis.exceptions import RedisError

from ... import DeadSet, Retried
from ...errors import JobNotFound, SuperfetchError
from ...inspector import PATIENCE, Inspector
from ...model.dead_job import FULL_ID, DeadFilter, DeadJob, utc
from ..health import judged
from ..jobs import PAGE_READS_MOST, Look, Which
from ..overview import overview_of
from .hiding import Hiding, parameters_of
from .secret_names import Hide

T = TypeVar("T")
Question = Callable[[Inspector], T]

#: Jobs on a page of the dead set.
PAGE = 50

#: Jobs in flight that are shown of a state.
JOBS = 100

#: Jobs that a search looks at before it shows what it has.
LOOKS = 1000

#: Seconds of which it is said how many runs ended.
MINUTE = 60.0

#: What is shown is as old as this, or this many times what it took, before it is read anew.
FRESH, SHARE = 1.0, 4.0

#: Answers that are kept: whoever looks says what is searched for, and could ask for any number.
KEPT = 32


#: Answers, beside the overview, that are read at a time: visitors could ask for any number.
SEARCHES = 4

#: Threads that searches may hold, those that read and those that wait for them. The page has 40 in
#: all: if searches had them, an overview would wait for the slowest search.
SEARCH_THREADS = 16
BUSY_S = 2  # seconds after which a browser that was refused asks again

OVERVIEW = "overview"

#: To find a job by a part of its id, or by that of its task, all jobs have to be read.
NOT_WHOLE = (
    "no job {!r} in the dead set: the page finds a job by its whole id alone; `superfetch dead "
    "show` knows the beginning of one, and the id of the task"
)


SEARCHES_RUN = f"many searches run: this one is tried again in {BUSY_S} s"
CHANGE_RUNS = "another change of many jobs is under way: make yours when that is over"


class Busy(SuperfetchError):
    """The page does so much that it begins no other search or change of many jobs."""


class Seen:
    """Reads for the page. From a server that fails it comes back with a new connection."""

    def __init__(self, app: Celery, hide: Hide) -> None:
        self.app = app
        self._hiding = Hiding(hide)
        #: Held for no longer than it takes to look into what is here.
        self._lock = threading.Lock()
        #: Name of an answer -> lock of the thread that reads it; gone when no thread wants it.
        self._reading = WeakValueDictionary[Hashable, threading.Lock]()
        self._searches = threading.BoundedSemaphore(SEARCHES)
        self._search_threads = threading.BoundedSemaphore(SEARCH_THREADS)
        #: Held by the thread that reads all dead jobs to change some.
        self._change = threading.Lock()
        self._cleared = 0  # how often all was forgotten
        self._inspector: Inspector | None = None
        self._known: dict[Hashable, tuple[float, dict[str, Any]]] = {}
        self._failed: tuple[float, Exception | None] = (0.0, None)
        #: What had ended when (monotonic s), of the last minute.
        self._ended: deque[tuple[float, Counter[str]]] = deque()

    def _ask(self, question: Question[T]) -> T:
        inspector = self._inspector
        try:
            if inspector is None:
                inspector = self._inspector = Inspector.of(self.app, timeout=PATIENCE)
            return question(inspector)
        except RedisError as exc:
            self._inspector = None  # the next server may be found elsewhere
            if inspector is not None:  # another thread may wait for its answer
                inspector.database.client.connection_pool.disconnect(inuse_connections=False)
            self._failed = monotonic(), exc
            raise

    def _kept(self, name: Hashable, question: Question[dict[str, Any]]) -> dict[str, Any]:
        """Return what was answered a moment ago, or is now: a thousand browsers that want the same
        ask once. One that wants something else does not wait for that, however long it takes.

        Raises Busy, for a search alone: too many run or wait.
        """
        asked = monotonic()
        with self._lock:
            until, answer = self._known.get(name, (0.0, {}))
        if asked < until:
            return answer
        if name == OVERVIEW:
            return self._read(name, question, asked)
        if not self._search_threads.acquire(blocking=False):
            raise Busy(SEARCHES_RUN)
        try:
            return self._read(name, question, asked)
        finally:
            self._search_threads.release()

    def _read(
        self, name: Hashable, question: Question[dict[str, Any]], asked: float
    ) -> dict[str, Any]:
        """Ask the server, or wait for the thread that asks it the same (since ``asked``)."""
        with self._lock:
            lock = self._reading.setdefault(name, threading.Lock())
        with lock, nullcontext() if name == OVERVIEW else self._searches:
            with self._lock:
                begun, cleared = monotonic(), self._cleared
                until, answer = self._known.get(name, (0.0, {}))
                failed, exc = self._failed
            if begun < until:
                return answer
            if exc and asked < failed:  # a browser that waited behind it need not fail by itself
                raise exc
            answer = self._ask(question)
            took = monotonic() - begun
            with self._lock:
                if cleared == self._cleared:  # otherwise it may be from before the change
                    self._known.pop(name, None)  # the one that was asked first is forgotten first
                    while len(self._known) >= KEPT:
                        del self._known[next(iter(self._known))]
                    self._known[name] = begun + took + max(FRESH, SHARE * took), answer
            return answer

    def clear(self) -> None:
        """Look anew: who has changed something wants to see it."""
        with self._lock:
            self._known.clear()
            self._cleared += 1

    def overview(self) -> dict[str, Any]:
        """An overview as it is ``Judged``, and the ``rates`` of its queues."""

        def look(inspector: Inspector) -> dict[str, Any]:
            overview = overview_of(inspector)
            if newest := overview["dead_set"]["newest"]:  # a finding tells its reason
                job = inspector.dead_set.exact(newest["id"])
                # It may have been retried meanwhile, and then what to hide is not known.
                newest["reason"] = self._hidden(job)["reason"] if job else "***"
            return {**judged(overview)._asdict(), "rates": self._rates(inspector)}

        return self._kept(OVERVIEW, look)

    def jobs(self, state: str) -> dict[str, Any]:
        """The first jobs in flight of this state."""
        return self._kept(
            state, lambda inspector: Look(inspector, Which(state)).first(JOBS, PAGE_READS_MOST)
        )

    def _rates(self, inspector: Inspector) -> dict[str, int]:
        """Queue -> runs that ended in the last minute, or in as much of it as somebody has looked;
        nothing until that is long enough to say."""
        ended: Counter[str] = Counter()
        for (_, queue_list, _), runs in inspector.runs.counts().ends.items():
            ended[queue_list.partition(inspector.separator)[0]] += runs
        now = monotonic()
        self._ended.append((now, ended))
        while len(self._ended) > 2 and self._ended[1][0] <= now - MINUTE:
            self._ended.popleft()
        since, before = self._ended[0]
        if now - since < MINUTE / 4:
            return {}
        return {q: round((n - before[q]) * MINUTE / (now - since)) for q, n in ended.items()}

    def dead(self, first: int, asked: dict[str, str]) -> dict[str, Any]:
        """A page of the dead set from the ``first`` newest on, of what is ``asked`` for alone: it
        looks at so many jobs and no more, and whoever searches goes on from ``next``."""
        which = DeadFilter(**_patterns(asked))

        def search(dead: DeadSet) -> dict[str, Any]:
            size, at, jobs = len(dead), first, list[DeadJob]()
            while at < min(size, first + LOOKS) and len(jobs) < PAGE:
                some = (job for job in dead.page(at, PAGE) if which.takes(job, dead.separator))
                jobs += self._shown_by(some, asked)
                at += PAGE
            shown, now = [*map(self._hidden, jobs)], utc(dead.database.server_time() / 1000)
            return {"jobs": shown, "size": size, "next": at if at < size else None, "now": now}

        return self._kept(("dead", first, *sorted(asked.items())), self._of_dead_set(search))

    def count_dead(self, asked: dict[str, str]) -> int:
        """Return how many dead jobs meet the conditions; with none, all. Raises Busy."""

        def count(dead: DeadSet) -> int:
            if not asked:
                return len(dead)
            return sum(1 for _ in self._shown_by(dead.find(**_patterns(asked)), asked))

        with self._one_change():
            return self.dead_set(count)

    def retry_all(self, asked: dict[str, str]) -> list[Retried]:
        """Put all back that are meant; a ``Retried`` of each. Raises Busy."""

        def retry(dead: DeadSet) -> list[Retried]:
            jobs = dead.find(oldest_first=True, **_patterns(asked))
            return dead.retry_many(self._shown_by(jobs, asked))

        with self._one_change():
            return self.dead_set(retry)

    def retry(self, ids: Sequence[str]) -> list[Retried]:
        """Put jobs back by their whole ids; a ``Retried`` of each."""
        whole = [id for id in ids if FULL_ID.fullmatch(id)]
        parts = [Retried(id, error=NOT_WHOLE.format(id)) for id in {*ids}.difference(whole)]
        return [*self.dead_set(lambda dead: dead.retry_many(whole)), *parts]

    def dead_job(self, id: str) -> dict[str, Any]:
        """One job by its whole id, and the time ``now``; raises JobNotFound."""
        if not FULL_ID.fullmatch(id):
            raise JobNotFound(NOT_WHOLE.format(id))

        def search(dead: DeadSet) -> dict[str, Any]:
            now = utc(dead.database.server_time() / 1000)
            try:
                return {**self._hidden(dead.get(id)), "now": now}
            except JobNotFound as exc:  # this answer is kept, too
                return {"missing": str(exc)}

        job = self._kept(("dead job", id), self._of_dead_set(search))
        if "missing" in job:
            raise JobNotFound(job["missing"])
        return job

    @contextmanager
    def _one_change(self) -> Iterator[None]:
        """Raise Busy while another thread has this: it reads all dead jobs."""
        if not self._change.acquire(blocking=False):
            raise Busy(CHANGE_RUNS)
        try:
            yield
        finally:
            self._change.release()

    def dead_set(self, use: Callable[[DeadSet], T]) -> T:
        """What is done with the dead set, and not kept."""
        return self._ask(self._of_dead_set(use))

    def _of_dead_set(self, use: Callable[[DeadSet], T]) -> Question[T]:
        """A dead set for each use: it counts the failures of the result backend."""
        return lambda inspector: use(DeadSet(self.app, inspector.database.client))

    def _shown_by(self, jobs: Iterable[DeadJob], asked: dict[str, str]) -> Iterator[DeadJob]:
        """Yield those jobs whose reason, as it is shown, has the text that is asked for. If the
        stored reason were searched, a visitor could guess what it hides."""
        part = asked.get("reason", "").casefold()
        for job in jobs:
            if not part or part in str(self._hidden(job)["reason"]).casefold():
                yield job

    def _hidden(self, job: DeadJob) -> dict[str, Any]:
        """A job without its secrets; and without its payload, which has them all."""
        record = job.as_dict()
        del record["payload"]
        return self._hiding.job(record, parameters_of(self.app, job.task))


def _patterns(asked: dict[str, str]) -> dict[str, Any]:
    """Translate a search for a ``DeadFilter``: a part of a task's name is enough. A reason is in
    what is stored if it is in what is shown, unless it has the mask."""
    patterns = dict(asked)
    if "task" in asked and "*" not in asked["task"]:
        patterns["task"] = f"*{asked['task']}*"
    if "*" in asked.get("reason", ""):
        del patterns["reason"]
    return patterns
