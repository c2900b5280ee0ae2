"""Trims the dead set (the jobs in Redis that were given up, kept for an operator), and logs how
many it drops for good.

``Reaper`` calls ``trim`` in about one pass of six: in a worker's maintenance thread, in beat's reap
task or in a command. If the process dies in the middle, a part of the surplus is dropped and
counted in the statistics (``dead_dropped``), but not logged; the next trim drops the others.
"""

from __future__ import annotations

import logging

from ..model.foreign import one_line
from ..model.humanize import command
from ..model.log_text import one_line_each
from ..store.dead_set import DeadSetStore, Trimmed

logger = one_line_each(logging.getLogger(__name__))


def trim(dead_set: DeadSetStore) -> None:
    """Drop the dead jobs that are too old, or too many for the cap of their kind (jobs that ran,
    jobs that never ran, unparseable items), and log their numbers. The numbers include the jobs
    that a full dead set has dropped since the last call, to make room for newer ones."""
    config, trimmed = dead_set.config, dead_set.trim()
    if old := sum(row.old for row in trimmed):
        logger.warning(
            "Jobs older than dead_ttl were deleted from the dead set (jobs=%d, dead_ttl=%g days). "
            "Look at the dead set more often, or raise dead_ttl.",
            old,
            config.dead_ttl / 86400,
        )
    for row in trimmed:
        if row.surplus and row.cap.kind == "ran":
            logger.warning(
                "The dead set is full: its oldest jobs were deleted (jobs=%d, dead_limit=%d). Find "
                "out with `%s dead list` what fails so often, retry or delete jobs, or raise "
                "dead_limit.",
                row.surplus,
                config.dead_limit,
                command(),
            )
        elif row.surplus:
            _log_flood(dead_set, row)


def _log_flood(dead_set: DeadSetStore, row: Trimmed) -> None:
    """Log that jobs that never ran, or unparseable items, have filled their own cap."""
    noun = "unparseable items" if row.cap.kind == "junk" else "jobs that never ran"
    newest = next(iter(dead_set.sample(row.cap)), None)
    logger.warning(
        "The dead set is flooded: %d %s were deleted for newer ones (newest: task=%s, "
        "reason=%s). It keeps at most %d of them, and %d MB; jobs that ran have their own limit. "
        "Find their sender with `%s dead list`.",
        row.surplus,
        noun,
        newest and newest.task and one_line(newest.task),
        newest and one_line(newest.reason),
        row.cap.most_jobs,
        row.cap.most_bytes // 2**20,
        command(),
    )
