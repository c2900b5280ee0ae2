"""Suspects run alone: when a channel gives up other jobs to let one of them have its turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from time import monotonic
from typing import Any

from kombu.log import get_logger

from ...owner.owner import Owner
from ...store.queues import Room, Suspects

logger = get_logger(__name__)

#: Seconds for which a busy owner comes to rest, at first. Each rest that served nobody lets the
#: next be twice as long, so that some rest is long enough for any job.
FIRST_REST = 60.0

#: Seconds for which nothing starts beside a suspect, at first. Each death in company that follows
#: makes that ten times as long, so that some time alone is long enough for any killer.
SOLITUDE = 60.0

#: How many times as long nobody rests afterwards: suspects cost at most a tenth of one owner.
WORK = 10

#: Queue lists of whose suspects it asks at a time: a script looks at the next one of each.
MOST_LISTS = 100

TRY_INTERVAL = 1.0  # seconds between two questions whether to rest, or to go on resting


class Probation:
    """Decides in each turn of one fetch whether a suspect has its process for itself."""

    _others_first = False
    _resting = False  # this owner came to rest, and has not gone back to work since
    _next_try = 0.0

    def __init__(self, fetch: Any) -> None:
        self.fetch = fetch
        self.owner: Owner = fetch.owner
        self._waits = Suspects(self.owner.database)

    def has_the_floor(self, lists: Sequence[str], dry: bool = True) -> bool:
        """True when nothing else may be claimed in this turn. ``dry``: nothing else waits."""
        if self._is_alone():
            if self._resting and self._is_time():
                self._ask([])  # its run is part of what the rest costs
            return True
        waiting = self._waiting(lists)
        if not waiting or self._others_first:
            if self._resting:
                self._make_room([])
            self._others_first = False
            if waiting:  # come back for the next, though no other job may come
                self.fetch.poller.ring()
            return False
        busy = self.owner.busy or self.fetch.backlog
        # Between two jobs of many it is as busy as any other.
        if (busy or not dry) and self._is_time() and self._make_room(waiting):
            for name in waiting:
                self._take_alongside(name)
        if self._resting or (dry and not busy):
            self.fetch.put_aside()
            if not busy and any(self._take(name) for name in waiting):
                return True
        return self._resting

    def _is_alone(self) -> bool:
        """Whether a suspect has the process for itself, and has not had it for long enough."""
        if self.owner.alone is None:
            return False
        alone = self.owner.end_solitude()
        if alone is None:
            return True
        logger.info(
            "Job %s, on probation, has had this process for itself for long enough: from now on "
            "others may start beside it.",
            alone.title,
        )
        return False

    def _waiting(self, lists: Sequence[str]) -> list[str]:
        suspects = self.owner.suspects
        waiting = (name for name in lists if name in suspects) if suspects else ()
        return [*islice(waiting, MOST_LISTS)]

    def _take(self, queue_list: str) -> bool:
        claimed = self.owner.claim_alone(queue_list, _solitude)
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
        claimed = self.owner.claim_alongside(queue_list, _solitude)
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
        """Quiesce for suspects, or end that; whether one may run alongside others now."""
        room = self._ask(waiting)
        rests = room.quiesces
        if rests and not self._resting:
            # Others may have what would only keep it busy for longer.
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
        """Ask whether this owner rests for suspects from some queue lists; with none it says that
        its rest lasted until now, and that a suspect had its turn."""
        room = self._waits.make_room(self.owner.name, waiting, FIRST_REST, WORK)
        if room.none:
            self.owner.found_no_suspects(waiting)
        return room


def _solitude(level: int) -> float:
    """Seconds for which nothing starts beside a suspect, whose so manieth time alone it is."""
    return SOLITUDE * 10 ** max(0, level - 1)
