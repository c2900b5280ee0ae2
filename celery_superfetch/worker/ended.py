"""What the runs of a worker came to, kept until they are counted on the server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry

from ..store.database import Database
from ..store.runs import FAILED, MOST, REJECTED, RETRIED, SUCCEEDED, Run, Runs, noted


class NotStarted(Ignore):
    """A job came too late to its process: it is handed over again."""


class Ended:
    """Thread-safe: a pool of threads says it in its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._known: set[Run] = set()

    def hear(self, queue_list: str, task: str, tell: Callable[[Any], Any], result: Any) -> Any:
        """Stands before what a pool tells of the end of a run."""
        if isinstance(result, tuple):  # else it was cut short
            failed, value, seconds = result
            error = value.exception if failed else None
            if not isinstance(error, NotStarted):
                self.note(queue_list, task, error, seconds)
        return tell(result)

    def note(self, queue_list: str, task: str, error: BaseException | None, seconds: float) -> None:
        """A run has ended, by what it raised if it did."""
        run = Run(queue_list, task)
        with self._lock:
            if run not in self._known and len(self._known) >= MOST:
                run = Run(queue_list, "")
            self._known.add(run)
            self._counts += noted(run, _how(error), max(0.0, seconds))

    def count(self, database: Database) -> None:
        """Add them up on the server; raises RedisError, and then some may come twice."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if counts:
            try:
                Runs(database).add(counts)
            except BaseException:
                with self._lock:
                    self._counts += counts
                raise


def _how(error: Any) -> str:
    if isinstance(error, ExceptionWithTraceback):  # of another process
        error = error.exc
    if error is None:
        return SUCCEEDED
    if isinstance(error, Retry):
        return RETRIED
    return REJECTED if isinstance(error, (Ignore, Reject)) else FAILED
