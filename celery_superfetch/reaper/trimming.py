"""Trims the dead set, and logs what it drops for good.

``Reaper`` calls it in its housekeeping, in one pass of six: in a worker's maintenance thread, in
beat's reap task or in a command. If the process dies in the middle, a part is dropped and counted
(`dead_dropped`), and no line says so; the next housekeeping continues.
"""

from __future__ import annotations

import logging

from ..model.foreign import one_line
from ..model.log_text import one_line_each
from ..model.words import command
from ..store.dead_set import DeadSet, Trimmed

logger = one_line_each(logging.getLogger(__name__))


def trim(dead_set: DeadSet) -> None:
    """Drop the dead jobs that are too old, or too many for their cap, and log their numbers. They
    include the jobs that a full dead set has dropped since the last call, each for a newer one."""
    config, trimmed = dead_set.config, dead_set.trim()
    if old := sum(row.old for row in trimmed):
        logger.warning(
            "%d jobs older than dead_ttl were dropped from the dead set, for good. Raise it "
            "(%g days) to keep them for longer.",
            old,
            config.dead_ttl / 86400,
        )
    for row in trimmed:
        if row.surplus and row.cap.kind == "ran":
            logger.warning(
                "The dead set is full: its %d oldest jobs were dropped for newer ones. Look what "
                "is killed so often (`%s dead list`), put back what you need (`dead retry`), or "
                "raise dead_limit (%d).",
                row.surplus,
                command(),
                config.dead_limit,
            )
        elif row.surplus:
            _tell_of_flood(dead_set, row)


def _tell_of_flood(dead_set: DeadSet, row: Trimmed) -> None:
    """Log that jobs that never ran, or unparseable items, have filled their own cap."""
    noun = "unparseable items" if row.cap.kind == "junk" else "jobs that never ran here"
    newest = next(iter(dead_set.sample(row.cap)), None)
    logger.warning(
        "The dead set is flooded: %d %s were dropped for newer ones, for good (newest: task=%s, "
        "reason=%s). It keeps %d of them, and %d MB; jobs that ran are not affected. Find their "
        "sender: `%s dead list` shows what was kept.",
        row.surplus,
        noun,
        newest and newest.task and one_line(newest.task),
        newest and one_line(newest.reason),
        row.cap.most_jobs,
        row.cap.most_bytes // 2**20,
        command(),
    )
