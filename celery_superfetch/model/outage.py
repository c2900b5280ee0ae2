"""Keeps an outage, or the repeated refusals, of the Redis server from filling the log.

A worker's maintenance thread (``worker/maintenance.py``) has ``Outage``s for each owner: a
worker has an owner in each database that it claims jobs from, and each may be on another server. A
channel's ``Upkeep`` has one for the refused calls of a plain consumer, and its ``QoS`` one for jobs
that the server refuses to move. It is in memory alone; after a death the next process logs the
outage again.
"""

from __future__ import annotations

import logging
import math
from time import monotonic

OUTAGE_LOG_INTERVAL_S = 60.0  # between two lines of an outage that goes on


class Outage:
    """The log lines of one activity that fails while its server is away or refuses it, and that its
    callers try again every few seconds: one line at the beginning, one a minute, one at the end.

    Arguments:
        expires_s: seconds without a failed try after which the outage is over without a line, since
            another process may have succeeded.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval_s: float = OUTAGE_LOG_INTERVAL_S,
        expires_s: float = math.inf,
    ) -> None:
        self._logger, self._interval_s, self._expires_s = logger, interval_s, expires_s
        self._began: float | None = None  # monotonic s; None: the last try succeeded
        self._failed_at = 0.0  # monotonic s; the last failed try
        self._next_line = 0.0

    @property
    def lasts(self) -> bool:
        """Return whether the last try failed, and not too long ago."""
        return self._began is not None and monotonic() - self._failed_at < self._expires_s

    def failed(self, text: str, *values: object) -> None:
        """Log a failed try as a warning, if a line is due; else at DEBUG."""
        # Other threads may log the end meanwhile.
        now, began = monotonic(), self._began if self.lasts else None
        self._failed_at = now
        if began is None:
            # One that has expired may continue, and each try wait for a long queue: it gets no more
            # lines than before.
            if self._began is None:
                self._next_line = now
            self._began = began = now
        level = logging.DEBUG
        if now >= self._next_line:
            level, self._next_line = logging.WARNING, now + self._interval_s
            if now > began:
                text, values = f"{text} This has lasted for %.0f s.", (*values, now - began)
        self._logger.log(level, text, *values)

    def ended(self, text: str) -> None:
        """Log that a try succeeded after one that failed; do nothing if the last try succeeded as
        well, or the outage has expired. ``text`` says what works again."""
        began, self._began = self._began if self.lasts else None, None
        if began is not None:
            self._logger.info("%s again, after %.0f s.", text, monotonic() - began)
