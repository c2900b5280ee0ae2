"""Trims the dead set, once a minute or so, and logs what it drops for good."""

from __future__ import annotations

import logging

from ..model.foreign import one_line
from ..model.log_text import one_line_each
from ..model.words import command
from ..store.dead_set import DeadSet, Trimmed

logger = one_line_each(logging.getLogger(__name__))


def trim(dead_set: DeadSet) -> None:
    """Drop what is too old, or too much for its cap; log that, with what kills have dropped since
    the last such line. If the process dies in between, it was dropped and counted
    (`dead_dropped`), and no line says so."""
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
