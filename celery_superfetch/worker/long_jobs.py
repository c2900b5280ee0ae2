"""Jobs that take long here: what runs is told of, what waits goes to who has time for it."""

from __future__ import annotations

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


class Relief:
    """Gives back what has waited here for ``reserved_timeout``, while another has nothing to do."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._next_look = 0.0

    def go(self, now: float) -> None:
        """Look whether there is something to give, and somebody who would begin with it."""
        membership, longest = self.membership, self.membership.config.reserved_timeout
        if longest is None or now < self._next_look or membership.runner.worker is None:
            return
        if membership.runner.free() > 0 or told_to_stop(membership):
            return
        since = time() - longest
        late = [
            job
            for job in list(membership.in_flight.jobs)
            if (claimed_at(job.claim_id) or since) < since and not why_not(membership, job)
        ]
        if not late:
            return
        self._next_look = now + max(membership.config.heartbeat_interval, longest / 2)
        given = sum(map(self._give, reversed(self._wanted(late))))
        if given:
            logger.info(
                "Jobs that had waited here for longer than %g s (reserved_timeout) are back on "
                "their queue, in front, since another worker of it has nothing to do: %d.",
                longest,
                given,
            )
            History(membership.database).relieved(given)

    def _wanted(self, late: list[Job]) -> list[Job]:
        """Those, of the oldest first, for which somebody has a free place."""
        others = Registry(self.membership.database).well()
        own = self.membership.owner
        places = [one.lists for one in others if one.owner != own for _ in range(one.free)]
        wanted = []
        for job in late:
            place = next((lists for lists in places if job.queue_list in lists), None)
            if place is not None:
                places.remove(place)
                wanted.append(job)
        return wanted

    def _give(self, job: Job) -> bool:
        try:
            release(self.membership, job)
        except Refused:  # it began a moment ago
            return False
        return True
