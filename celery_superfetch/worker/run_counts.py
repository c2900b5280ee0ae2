"""What the runs of a worker came to, kept until they are counted on the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from ..store.database import Database
from ..store.runs import FAILED, MOST, REJECTED, RETRIED, SUCCEEDED, Runs, Tally
from .outcomes import exception_of, failure_of


class RunCounts:
    """Thread-safe: a pool of threads says it in its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Pairs of queue list and task that are told apart until the next report.
        self._pairs: set[tuple[str, str]] = set()
        self._tally = Tally()

    def hear(self, queue_list: str, task: str, tell: Callable[[Any], Any], result: Any) -> Any:
        """Stands before what a pool tells of the end of a run."""
        _, _, seconds = result if isinstance(result, tuple) else (False, None, None)
        # Without a time it was cut short, as a greenlet is that was killed.
        if seconds is not None:
            failed = failure_of(result)
            self.note(queue_list, task, exception_of(failed) if failed else None, seconds)
        return tell(result)

    def note(self, queue_list: str, task: str, error: BaseException | None, seconds: float) -> None:
        """A run has ended, by what it raised if it did."""
        how = SUCCEEDED if error is None else _how(error)
        with self._lock:
            if (queue_list, task) not in self._pairs and len(self._pairs) >= MOST:
                task = ""
                if (queue_list, "") not in self._pairs and len(self._pairs) >= 2 * MOST:
                    queue_list = ""
            self._pairs.add((queue_list, task))
            self._tally.note(how, queue_list, task, seconds)

    def count(self, database: Database) -> None:
        """Add them up on the server; raises RedisError, and then some may come twice."""
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
