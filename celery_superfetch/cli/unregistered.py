"""Owners that nobody registered: their keys were deleted, or evicted, under their jobs."""

from __future__ import annotations

import logging

from ..reaper.reaper import Reaper

logger = logging.getLogger(__name__)


def register_unknown(reaper: Reaper) -> int:
    """How many were registered. No job moves: they are judged like any other from here on."""
    adopted = 0
    for owner, queue_lists in reaper.keyspace.owners().items():
        if reaper.registry.adopt(owner, queue_lists):
            adopted += 1
            logger.warning(
                "Unknown owner %s is registered now. Its jobs are given back if nobody is heard "
                "under that name for a full owner_ttl: watch it, by a worker that runs or by "
                "`superfetch reap --wait`.",
                owner,
            )
    return adopted
