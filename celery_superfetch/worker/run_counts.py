"""Counts how the runs of a worker end and how long they take, for metrics and charts.

``LeasedRequest`` calls ``count_end`` at the end of each run. The worker's maintenance thread adds
the counts to the totals in Redis (``count``) at the pace of the heartbeats, and the worker does so
once more as it ends. Counts that were not added are lost with the process. A run that ends by the
death of its process is not counted here: the reaper counts the recovery.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from secrets import token_hex
from typing import Any

from celery.exceptions import Ignore, Reject, Retry

from ..store.database import Database, chunks
from ..store.runs import (
    COUNTERS_PER_SCRIPT,
    FAILED,
    PAIRS_MAX,
    REJECTED,
    RETRIED,
    SUCCEEDED,
    RunReport,
    Runs,
    Tally,
)
from .outcomes import exception_of, failure_of


class RunCounts:
    """The counts of one worker since they were last added to the totals in Redis. Thread-safe: in a
    pool of threads a job's thread counts its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Pairs of queue list (the Redis list of one queue and priority) and task that are counted
        #: apart until the counts are added to the totals.
        self._pairs: set[tuple[str, str]] = set()
        self._tally = Tally()
        #: Held while reports are sent: as a worker ends, two threads may do so.
        self._sending = threading.Lock()
        #: Reports that are not known to be added. The counts after them wait in the tally, which is
        #: bounded, until all of them are.
        self._reports = deque[RunReport]()
        self._name, self._numbers = token_hex(8), count()

    def count_end(self, queue_list: str, task: str, result: Any) -> None:
        """Count the end of a run by the result of Celery's tracer."""
        _, _, seconds = result if isinstance(result, tuple) else (False, None, None)
        # A run without a time was cut short: its greenlet was killed.
        if seconds is not None:
            failed = failure_of(result)
            self.count_run(queue_list, task, exception_of(failed) if failed else None, seconds)

    def count_run(
        self, queue_list: str, task: str, error: BaseException | None, seconds: float
    ) -> None:
        """Count the end of a run. ``error``: what it raised; None: it returned."""
        how = SUCCEEDED if error is None else _how(error)
        with self._lock:
            # If there are ``PAIRS_MAX`` pairs, a run of a new pair counts without the name of its
            # task; if there are twice as many, also without its queue list.
            if (queue_list, task) not in self._pairs and len(self._pairs) >= PAIRS_MAX:
                task = ""
                if (queue_list, "") not in self._pairs and len(self._pairs) >= 2 * PAIRS_MAX:
                    queue_list = ""
            self._pairs.add((queue_list, task))
            self._tally.count_run(how, queue_list, task, seconds)

    def count(self, database: Database) -> None:
        """Add the counts to the totals in Redis. If that raises RedisError, the counts are kept for
        the next call. Each run is counted once, also if only a reply was lost: what was sent is
        sent again as it was."""
        with self._sending:
            self._send(database)  # what an earlier call could not send, or has no reply for
            self._reports += self._new_reports()
            self._send(database)

    def _send(self, database: Database) -> None:
        runs = Runs(database)
        while self._reports:
            runs.add(self._reports[0])
            self._reports.popleft()

    def _new_reports(self) -> list[RunReport]:
        """Return the counts since the last call, as reports of so many counters at most."""
        with self._lock:
            tally, self._tally = self._tally, Tally()
            self._pairs.clear()
        return [
            RunReport(self._name, next(self._numbers), [*some])
            for some in chunks([*tally.items()], COUNTERS_PER_SCRIPT)
        ]


def _how(error: BaseException) -> str:
    if isinstance(error, Retry):
        return RETRIED
    return REJECTED if isinstance(error, (Ignore, Reject)) else FAILED
