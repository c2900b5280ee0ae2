"""Counts how the runs of a worker end and how long they take, for metrics. ``LeasedRequest`` counts
the end of each run; the maintenance thread adds the counts to the server's at the pace of the
heartbeats. Counts that were not added are lost with the process."""

from __future__ import annotations

import threading
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from ..store.database import Database
from ..store.runs import FAILED, MOST, REJECTED, RETRIED, SUCCEEDED, Runs, Tally
from .outcomes import exception_of, failure_of


class RunCounts:
    """The counts of one worker since they were last added to the server's. Thread-safe: in a pool
    of threads a job's thread counts its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Pairs of queue list and task that are counted apart until the next report.
        self._pairs: set[tuple[str, str]] = set()
        self._tally = Tally()

    def count_end(self, queue_list: str, task: str, result: Any) -> None:
        """Count the end of a run by the result of Celery's tracer."""
        _, _, seconds = result if isinstance(result, tuple) else (False, None, None)
        # A run without a time was cut short: its greenlet was killed.
        if seconds is not None:
            failed = failure_of(result)
            self.note(queue_list, task, exception_of(failed) if failed else None, seconds)

    def note(self, queue_list: str, task: str, error: BaseException | None, seconds: float) -> None:
        """Count the end of a run. ``error``: what it raised; None: it returned."""
        how = SUCCEEDED if error is None else _how(error)
        with self._lock:
            # Beyond ``MOST`` pairs a run counts without its task's name, then without its queue.
            if (queue_list, task) not in self._pairs and len(self._pairs) >= MOST:
                task = ""
                if (queue_list, "") not in self._pairs and len(self._pairs) >= 2 * MOST:
                    queue_list = ""
            self._pairs.add((queue_list, task))
            self._tally.note(how, queue_list, task, seconds)

    def count(self, database: Database) -> None:
        """Add the counts to the server's. If that raises RedisError, they are kept for the next
        call; those whose reply was lost are then added twice."""
        with self._lock:
            tally, self._tally = self._tally, Tally()
            pairs, self._pairs = self._pairs, set()
        if tally:
            try:
                Runs(database).add(tally)
            except BaseException:
                with self._lock:
                    self._tally.update(tally)
                    self._pairs |= pairs
                raise


def _how(error: BaseException) -> str:
    if isinstance(error, Retry):
        return RETRIED
    return REJECTED if isinstance(error, (Ignore, Reject)) else FAILED
