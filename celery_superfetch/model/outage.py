"""Keeps an outage, or the repeated refusals, of the Redis server from filling the log.

A worker's maintenance thread (``worker/maintenance.py``) has ``Outage``s for each owner: a
worker has an owner in each database that it claims jobs from, and each may be on another server. A
channel's ``Upkeep`` has one for the refused calls of a plain consumer, and its ``QoS`` one for jobs
that the server refuses to move. It is in memory alone; after a death the next process logs the
outage again.
"""

from __future__ import annotations

import logging
from time import monotonic

OUTAGE_LOG_INTERVAL_S = 60.0  # between two lines of an outage that goes on


class Outage:
    """The log lines of one activity that fails while its server is away or refuses it, and that its
    callers try again every few seconds: one line at the beginning, one a minute, one at the
    end."""

    def __init__(self, logger: logging.Logger, interval_s: float = OUTAGE_LOG_INTERVAL_S) -> None:
        self._logger, self._interval_s = logger, interval_s
        self._began: float | None = None  # monotonic s; None: the last try succeeded
        self._next_line = 0.0

    @property
    def lasts(self) -> bool:
        """Return whether the last try failed."""
        return self._began is not None

    def failed(self, text: str, *values: object) -> None:
        """Log a failed try as a warning, if a line is due; else at DEBUG."""
        # Other threads may log the end meanwhile.
        now, began = monotonic(), self._began
        if began is None:
            self._began = self._next_line = began = now
        level = logging.DEBUG
        if now >= self._next_line:
            level, self._next_line = logging.WARNING, now + self._interval_s
            if now > began:
                text, values = f"{text} This has lasted for %.0f s.", (*values, now - began)
        self._logger.log(level, text, *values)

    def ended(self, text: str) -> None:
        """Log that a try succeeded after one that failed; do nothing if the last try succeeded as
        well. ``text`` says what works again."""
        began, self._began = self._began, None
        if began is not None:
            self._logger.info("%s again, after %.0f s.", text, monotonic() - began)
