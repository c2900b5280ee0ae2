"""What the runs of a worker came to, kept until they are counted on the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Ignore, Reject, Retry

from ..store.database import Database
from ..store.runs import FAILED, MOST, REJECTED, RETRIED, SUCCEEDED, Runs, TaskRuns
from .handover import NotStarted


class RunCounts:
    """Thread-safe: a pool of threads says it in its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs_of: dict[tuple[str, str], TaskRuns] = {}

    def hear(self, queue_list: str, task: str, tell: Callable[[Any], Any], result: Any) -> Any:
        """Stands before what a pool tells of the end of a run."""
        failed, value, seconds = result if isinstance(result, tuple) else (False, None, None)
        error = value.exception if failed else None
        # Without a time it was cut short, as a greenlet is that was killed.
        if seconds is not None and not isinstance(error, NotStarted):
            self.note(queue_list, task, error, seconds)
        return tell(result)

    def note(self, queue_list: str, task: str, error: BaseException | None, seconds: float) -> None:
        """A run has ended, by what it raised if it did."""
        how = SUCCEEDED if error is None else _how(error)
        with self._lock:
            task_runs = self._runs_of.get((queue_list, task)) or self._task_runs(queue_list, task)
            task_runs.note(how, seconds)

    def _task_runs(self, queue_list: str, task: str) -> TaskRuns:
        run = (queue_list, task if len(self._runs_of) < MOST else "")
        return self._runs_of.setdefault(run, TaskRuns())

    def count(self, database: Database) -> None:
        """Add them up on the server; raises RedisError, and then some may come twice."""
        with self._lock:
            counts = [*self._counts()]
            counted, self._runs_of = self._runs_of, {run: TaskRuns() for run in self._runs_of}
        if counts:
            try:
                Runs(database).add(counts)
            except BaseException:
                with self._lock:
                    for run, task_runs in counted.items():
                        self._runs_of.setdefault(run, TaskRuns()).add(task_runs)
                raise

    def _counts(self) -> Iterator[tuple[str, int]]:
        for (queue_list, task), task_runs in self._runs_of.items():
            yield from task_runs.counts(queue_list, task)


def _how(error: BaseException) -> str:
    if isinstance(error, ExceptionWithTraceback):  # of another process
        error = error.exc
    if isinstance(error, Retry):
        return RETRIED
    return REJECTED if isinstance(error, (Ignore, Reject)) else FAILED
