"""Jobs that run for long here are told of."""

from __future__ import annotations

from time import time

from ..model.job import digest
from ..owner.membership import Membership

#: Jobs of one owner that are told of.
MOST = 100


def note_stuck(membership: Membership) -> None:
    """Have the next heartbeat tell what runs for longer than ``stuck_after``; it costs no look."""
    longest, worker = membership.config.stuck_after, membership.runner.worker
    if longest is None or worker is None:  # a consumer of the same process has no pool
        return
    now, found = time(), []
    for what in list(worker.superfetch_gate.out):
        request = what.request
        seconds = now - (request.time_start or now)
        if seconds > longest and what.delivery.membership is membership:
            found.append((request.type, request.id, digest(what.job.payload), int(seconds)))
    membership.heart.stuck_jobs = tuple(found[:MOST])
