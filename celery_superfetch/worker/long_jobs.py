"""Jobs that take long here: what runs is told of, what waits goes to who has time for it."""

from __future__ import annotations

from contextlib import suppress
from time import time

from celery.utils.log import get_logger

from ..model.job import Job, claimed_at, digest
from ..owner.membership import Membership
from ..store.history import History
from ..store.registry import Registry
from .orders import Refused, release, why_not
from .stopping import told_to_stop

logger = get_logger(__name__)

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


def relieve(membership: Membership) -> float:
    """Give back what has waited here for ``reserved_timeout``, if somebody else would begin with
    it; for how many seconds there is no need to look again."""
    longest, runner = membership.config.reserved_timeout, membership.runner
    if longest is None or runner.worker is None or runner.free() > 0 or told_to_stop(membership):
        return 0.0
    since = time() - longest
    late = [
        job
        for job in list(membership.in_flight.jobs)
        if (claimed_at(job.claim_id) or since) < since and not why_not(membership, job)
    ]
    if not late:
        return 0.0
    given = 0
    for job in reversed(_wanted(membership, late)):
        with suppress(Refused):  # it began a moment ago
            release(membership, job)
            given += 1
    if given:
        logger.info(
            "Jobs that had waited here for longer than %g s (reserved_timeout) are back on "
            "their queue, in front, since another worker of it has nothing to do: %d.",
            longest,
            given,
        )
        History(membership.database).relieved(given)
    return max(membership.config.heartbeat_interval, longest / 2)


def _wanted(membership: Membership, late: list[Job]) -> list[Job]:
    """Those, of the oldest first, for which somebody has a free place."""
    others = Registry(membership.database).well()
    own = membership.owner
    places = [one.lists for one in others if one.owner != own for _ in range(one.free)]
    wanted = []
    for job in late:
        place = next((lists for lists in places if job.queue_list in lists), None)
        if place is not None:
            places.remove(place)
            wanted.append(job)
    return wanted
