"""The page's readings of the server, cached for about a second for all visitors.

``page`` calls it in a thread for each request. The cache is in memory; a change of jobs clears it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from celery import Celery
from redis.exceptions import RedisError

from ...inspector import READER_TIMEOUT_S, Inspector
from ..audit import audit_of, change_of
from ..charts import charts_of, last_hour_of
from ..health import judged
from ..job_texts import logs_of, summary_of, workflow_of
from ..jobs import PAGE_READS_MOST, JobsSnapshot, Which
from ..one_job import find_jobs, one_job
from ..overview import overview_of
from ..permissions import Refused
from ..queue_view import view_of
from ..recurring import recurring_of
from ..server import refused_of, server_of
from ..workers import one_worker, workers_of
from .busy import BUSY_S, Busy
from .dead_reader import DeadReader
from .drawing import drawings_of
from .hiding import Hiding, parameters_of
from .secret_names import Hide

T = TypeVar("T")
Question = Callable[[Inspector], T]

#: Jobs in flight that the page shows of one state.
JOBS_SHOWN = 100

#: Seconds for which the page shows the rate of runs that ended.
RATE_WINDOW_S = 60.0

#: Greatest age of a cached reading: seconds, or this many times the duration of the reading.
CACHE_S, CACHE_SHARE = 1.0, 4.0

#: Cached answers: a visitor chooses the searches, and could ask for any number.
CACHED_ANSWERS = 32


#: Searches that are read at a time, not counting the overview: visitors could start any number.
SEARCHES_AT_ONCE = 4

#: Threads that searches may hold, whether they read or wait. The page has 40 in all: if searches
#: had them, an overview would wait for the slowest search.
SEARCH_THREADS = 16

#: Seconds for which the commands that the server refuses count as known: they seldom change, and
#: the question takes a connection.
REFUSED_S = 60.0

OVERVIEW = "overview"

#: Charts on the overview.
OVERVIEW_CHARTS = ("succeeded", "failed", "waiting")


SEARCHES_RUN = f"too many searches are running: this one is tried again in {BUSY_S} s"


class PageCache:
    """The page's cached readings. After an error of the server it connects again."""

    def __init__(self, app: Celery, hide: Hide) -> None:
        self.app = app
        self._hiding = Hiding(hide)
        self.dead_jobs = DeadReader(app, self._cached, self._query, self._hiding)
        #: Held only to read or change the fields of this object.
        self._lock = threading.Lock()
        #: Name of an answer -> lock of the thread that reads it; gone when no thread wants it.
        self._reading = WeakValueDictionary[Hashable, threading.Lock]()
        self._searches = threading.BoundedSemaphore(SEARCHES_AT_ONCE)
        self._search_threads = threading.BoundedSemaphore(SEARCH_THREADS)
        self._cleared = 0  # number of times that the cache was cleared
        self._inspector: Inspector | None = None
        self._known: dict[Hashable, tuple[float, dict[str, Any]]] = {}
        self._failed: tuple[float, Exception | None] = (0.0, None)
        #: Commands that the server refuses, and until when (monotonic s) that counts as known.
        self._refused: tuple[float, Refused | None] = (0.0, None)
        #: Readings of about the last minute: time (monotonic s), runs that had ended by queue.
        self._ended: deque[tuple[float, Counter[str]]] = deque()

    def _query(self, question: Question[T]) -> T:
        inspector = self._inspector
        try:
            if inspector is None:
                inspector = self._inspector = Inspector.of(self.app, timeout=READER_TIMEOUT_S)
            return question(inspector)
        except RedisError as exc:
            self._inspector = None  # the next server may be found elsewhere
            if inspector is not None:  # another thread may wait for its answer
                inspector.database.client.connection_pool.disconnect(inuse_connections=False)
            self._failed = monotonic(), exc
            raise

    def _cached(self, name: Hashable, question: Question[dict[str, Any]]) -> dict[str, Any]:
        """Return a cached answer, or read it: a thousand browsers that want the same answer read it
        once. A browser that wants another answer does not wait for that one.

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
        """Ask the server, or wait for the thread that asks it the same question. ``asked``: time of
        the request (monotonic s)."""
        with self._lock:
            lock = self._reading.setdefault(name, threading.Lock())
        with lock, nullcontext() if name == OVERVIEW else self._searches:
            with self._lock:
                begun, cleared = monotonic(), self._cleared
                until, answer = self._known.get(name, (0.0, {}))
                failed, exc = self._failed
            if begun < until:
                return answer
            if exc and asked < failed:  # the thread that it waited for failed: ask no second time
                raise exc
            answer = self._query(question)
            took = monotonic() - begun
            with self._lock:
                if cleared == self._cleared:  # otherwise it may be from before the change
                    self._known.pop(name, None)  # and in again, as the newest: the oldest goes
                    while len(self._known) >= CACHED_ANSWERS:
                        del self._known[next(iter(self._known))]
                    self._known[name] = begun + took + max(CACHE_S, CACHE_SHARE * took), answer
            return answer

    def clear(self) -> None:
        """Forget all answers, so that a visitor who has changed something sees the change."""
        with self._lock:
            self._known.clear()
            self._cleared += 1

    def overview(self) -> dict[str, Any]:
        """Return an overview with its findings (``Judged``), the ``rates`` of its queues, and the
        ``drawings`` of some charts."""

        def read_overview(inspector: Inspector) -> dict[str, Any]:
            overview = overview_of(inspector)
            if newest := overview["dead_set"]["newest"]:  # a finding quotes its reason
                job = inspector.dead_set.exact(newest["id"])
                # The job may have been retried meanwhile: then its secrets are not known.
                newest["reason"] = self.dead_jobs.hidden(job)["reason"] if job else "***"
            drawings = drawings_of(last_hour_of(inspector), OVERVIEW_CHARTS)
            return {
                **judged(overview)._asdict(),
                "rates": self._rates(inspector),
                "drawings": drawings,
            }

        return self._cached(OVERVIEW, read_overview)

    def jobs(self, which: Which, sort: str = "") -> dict[str, Any]:
        """Return the first jobs that meet the conditions, without their secrets."""

        def read_jobs(inspector: Inspector) -> dict[str, Any]:
            document = JobsSnapshot(inspector, which, sort).first(JOBS_SHOWN, PAGE_READS_MOST)
            return _with_jobs(document, self._hidden_arguments)

        return self._cached(("jobs", *which, sort), read_jobs)

    def job(self, id: str) -> dict[str, Any]:
        """Return the jobs with a task id or digest, without their secrets."""

        def search(inspector: Inspector) -> dict[str, Any]:
            return _with_jobs(one_job(inspector, id), self._shown_job)

        return self._cached(("job", id), search)

    def find(self, text: str) -> dict[str, Any]:
        """Return the jobs of all states that match a text, without their secrets."""

        def search(inspector: Inspector) -> dict[str, Any]:
            return _with_jobs(find_jobs(inspector, text), self._shown_job)

        return self._cached(("find", text), search)

    def workers(self) -> dict[str, Any]:
        """Return all workers."""
        return self._cached("workers", workers_of)

    def recurring(self) -> dict[str, Any]:
        """Return the recurring tasks of the app."""
        return self._cached("recurring", lambda inspector: recurring_of(self.app, inspector))

    def worker(self, owner: str) -> dict[str, Any]:
        """Return one worker and its jobs, without their secrets."""

        def read_worker(inspector: Inspector) -> dict[str, Any]:
            return _with_jobs(one_worker(inspector, owner), self._hidden_arguments)

        return self._cached(("worker", owner), read_worker)

    def _shown_job(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return a job of ``one_job`` without its secrets, as its page shows it."""
        record = {**job, "reason": job.get("reason", ""), "history": job["events"]}
        masked = self._hiding.job(record, parameters_of(self.app, job["task"]))
        masked["events"] = masked.pop("history")
        fields = summary_of({**masked, "reason": None})
        return {**masked, "fields": fields, "flow": workflow_of(job), "log_lines": logs_of(job)}

    def charts(self, hours: int, queue: str | None) -> dict[str, Any]:
        """Return the charts of the latest hours, of one queue or of all."""
        return self._cached(
            ("charts", hours, queue), lambda inspector: charts_of(inspector, hours, queue)
        )

    def server(self) -> dict[str, Any]:
        """Return the state of the server, with its findings."""

        def read_server(inspector: Inspector) -> dict[str, Any]:
            until, denied = self._refused
            if monotonic() >= until:
                denied = refused_of(inspector)
                self._refused = monotonic() + REFUSED_S, denied
            return server_of(inspector, denied)

        return self._cached("server", read_server)

    def queue(self, name: str) -> dict[str, Any]:
        """Return one queue (``queue_view``), without the secrets of its jobs; empty if it is
        unknown."""
        overview = self.overview()["overview"]

        def read_queue(inspector: Inspector) -> dict[str, Any]:
            view = view_of(inspector, overview, name)
            return _with_jobs(view, self._hidden_arguments) if view else {}

        return self._cached(("queue", name), read_queue)

    def use(self, question: Question[T]) -> T:
        """Ask the server, or change something there, and cache nothing."""
        return self._query(question)

    def audit(self, first: int, count: int) -> dict[str, Any]:
        """Return some entries of the audit list."""
        return self._cached(("audit", first), lambda inspector: audit_of(inspector, first, count))

    def change(self, id: str) -> dict[str, Any]:
        """Return one change that is on the audit list (``change_of``)."""
        return self._cached(("change", id), lambda inspector: change_of(inspector, id))

    def _rates(self, inspector: Inspector) -> dict[str, int]:
        """Return queue -> runs per minute, since the latest reading that is a minute old, or since
        the first one; empty while that is less than 15 s ago."""
        ended: Counter[str] = Counter()
        for (_, queue_list, _), runs in inspector.runs.counts().ends.items():
            ended[inspector.database.queue_of(queue_list)] += runs
        now = monotonic()
        self._ended.append((now, ended))
        while len(self._ended) > 2 and self._ended[1][0] <= now - RATE_WINDOW_S:
            self._ended.popleft()
        since, before = self._ended[0]
        if now - since < RATE_WINDOW_S / 4:
            return {}
        return {q: round((n - before[q]) * RATE_WINDOW_S / (now - since)) for q, n in ended.items()}

    def _hidden_arguments(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return a job that is not dead without the secrets in its arguments."""
        record = {"reason": "", "history": (), **job}
        return self._hiding.job(record, parameters_of(self.app, job["task"]))


def _with_jobs(
    document: dict[str, Any], hide: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return a document with its ``jobs`` as the page shows them."""
    return {**document, "jobs": [*map(hide, document["jobs"])]}
