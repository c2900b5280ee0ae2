"""Calls that are found necessary under the lock of the leases, and made after it is released.

A log handler, or a receiver of a signal, may block (a full pipe, a slow service). If it was called
under the lock, no thread of the process could claim, start or ack a job meanwhile. So
``PendingLeases`` has two: of log lines, and of announcements that the ownership of a job was lost.
``InFlight.announce`` makes both, and ``InFlight.write_log`` the log lines alone: in a worker in its
maintenance thread, or in the thread in which an owner leaves; in a plain consumer in its own
thread. The calls are in memory alone: if the process dies before them, their log lines, signals
(``ownership_lost``) and counts are missing. No job depends on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock


class LaterCalls:
    """Calls that one thread at a time makes, each once, in the order in which they were added; true
    if there are any. Any thread adds them."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._making = RLock()  # held by the thread that makes calls; re-entrant for the calls

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: Callable[[], object]) -> None:
        """Add a call: the next ``make`` makes it."""
        self._calls.append(call)

    def make(self) -> None:
        """Make the calls. If another thread is making some, it makes these as well. The caller must
        not hold the lock of the leases."""
        # ``_calls`` is checked again after each release: just before it, another thread may add a
        # call, and not get the lock.
        while self._calls and self._making.acquire(blocking=False):
            try:
                # One by one: if a call is interrupted (a killed greenlet, a signal handler that
                # raises), the next ``make`` makes the others.
                while self._calls:
                    self._calls.popleft()()
            finally:
                self._making.release()
