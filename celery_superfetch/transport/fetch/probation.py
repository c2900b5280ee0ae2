"""Decides when a suspect (a job on probation) runs alone in this worker: at once if the worker has
no other job, else after a quiesce, in which the worker claims nothing until its jobs have ended.

A job that runs alone when its worker dies is surely to blame. If the process dies in a quiesce,
that ends at its time limit on the server (``make_room.lua``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from time import monotonic
from typing import Any

from kombu.log import get_logger

from ...model.log_text import one_line_each
from ...owner.owner import Owner
from ...store.queues import Room, Suspects

logger = one_line_each(get_logger(__name__))

#: Time limit (s) of the first quiesce. After one in vain the next is twice as long, so that some
#: quiesce is long enough for any job.
FIRST_REST = 60.0

#: Time (s) for which no other job starts alongside a suspect, at first. Each death of its owner
#: alongside other jobs makes that ten times as long, so that it is long enough for any killer once.
SOLITUDE = 60.0

#: How many times as long no owner quiesces afterwards: suspects cost at most a tenth of one owner.
WORK = 10

#: Most queue lists in one call: its script reads the next suspect of each.
MOST_LISTS = 100

TRY_INTERVAL = 1.0  # s between two calls of the script


class Probation:
    """The decision, in each tick of one fetch, whether a suspect has the process for itself."""

    _others_first = False  # a suspect was claimed: other jobs come before the next suspect
    _resting = False  # this owner quiesces
    _next_try = 0.0  # monotonic s

    def __init__(self, fetch: Any) -> None:
        self.fetch = fetch
        self.owner: Owner = fetch.owner
        self._waits = Suspects(self.owner.database)

    def has_the_floor(self, lists: Sequence[str], dry: bool = True) -> bool:
        """Claim a suspect if one may run now; return whether nothing else may be claimed in this
        tick. ``dry``: the queues are empty."""
        if self._is_alone():
            if self._resting and self._is_time():
                self._ask([])  # the quiesce lasts as long as the run, which counts for the pause
            return True
        waiting = self._waiting(lists)
        if not waiting or self._others_first:
            if self._resting:
                self._make_room([])
            self._others_first = False
            if waiting:  # the next tick has to come for it, also if no other job arrives
                self.fetch.poller.ring()
            return False
        busy = self.owner.busy or self.fetch.backlog
        # If the queues are not empty, a worker that is idle between two jobs counts as busy.
        if (busy or not dry) and self._is_time() and self._make_room(waiting):
            for name in waiting:
                self._take_alongside(name)
        if self._resting or (dry and not busy):
            self.fetch.put_aside()
            if not busy and any(self._take(name) for name in waiting):
                return True
        return self._resting

    def _is_alone(self) -> bool:
        """Return whether a suspect has the process for itself; end that if it has lasted long
        enough."""
        if self.owner.leases.solo_job is None:
            return False
        alone = self.owner.leases.end_solo()
        if alone is None:
            return True
        logger.info(
            "Job %s, on probation, has had this process for itself for long enough: from now on "
            "others may start beside it.",
            alone.title,
        )
        return False

    def _waiting(self, lists: Sequence[str]) -> list[str]:
        suspects = self.owner.leases.suspects
        waiting = (name for name in lists if name in suspects) if suspects else ()
        return [*islice(waiting, MOST_LISTS)]

    def _take(self, queue_list: str) -> bool:
        claimed = self.owner.leases.claim_alone(self.owner.name, queue_list, _solitude)
        if claimed is not None:
            self._others_first = True
            self.fetch.backlog.ready.append(claimed)
            logger.warning(
                "Job %s is on probation: it runs alone in this process now, since it may be the "
                "one that killed others. Other jobs wait until it has ended, but no longer than "
                "%g s.",
                claimed.job.title,
                _solitude(claimed.probation),
            )
        return claimed is not None

    def _take_alongside(self, queue_list: str) -> None:
        claimed = self.owner.leases.claim_alongside(self.owner.name, queue_list, _solitude)
        if claimed is not None:
            self.fetch.backlog.ready.append(claimed)
            logger.warning(
                "Job %s is on probation, and this worker could not make room for it in time: its "
                "other jobs did not end, or wait for this one. It runs alongside them now.",
                claimed.job.title,
            )

    def _is_time(self) -> bool:
        if monotonic() < self._next_try:
            return False
        self._next_try = monotonic() + TRY_INTERVAL
        return True

    def _make_room(self, waiting: Sequence[str]) -> bool:
        """Begin, continue or end a quiesce for suspects of the ``waiting`` queue lists; return
        whether one may run alongside others now."""
        room = self._ask(waiting)
        rests = room.quiesces
        if rests and not self._resting:
            # Other workers run the jobs that have not started: here they would prolong the quiesce.
            self.fetch.channel.qos.requeue_waiting()
            logger.info(
                "A job is on probation, and this worker is the one that makes room for it: it "
                "claims nothing for a while, and runs that job alone if its own end meanwhile. "
                "Other workers go on."
            )
        elif self._resting and not rests:
            logger.info(
                "This worker claims jobs again. What is still on probation runs alone as soon as a "
                "worker runs nothing, or alongside other jobs now."
            )
        self._resting = rests
        return room.alongside and not rests

    def _ask(self, waiting: Sequence[str]) -> Room:
        """Call the script: may this owner quiesce for suspects of some queue lists? With none: its
        quiesce has lasted until now, and a suspect has run."""
        room = self._waits.make_room(self.owner.name, waiting, FIRST_REST, WORK)
        if room.none:
            self.owner.leases.found_no_suspects(waiting)
        return room


def _solitude(level: int) -> float:
    """Return for how many seconds no other job starts alongside a suspect, in its solo run number
    ``level``."""
    return SOLITUDE * 10 ** max(0, level - 1)
