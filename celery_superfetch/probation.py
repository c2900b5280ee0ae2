"""Suspects run alone: when a channel gives up other jobs to let one of them have its turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from kombu.log import get_logger

if TYPE_CHECKING:
    from .fetch import Fetch

logger = get_logger(__name__)

#: Seconds after which one more owner stops claiming for the sake of the same suspects. Whoever
#: is idle serves them without; a busy one has to come to rest first, for as long as its longest
#: job runs, and the others are to go on meanwhile.
REST_INTERVAL = 60.0

#: Seconds for which the server may take an idle owner for busy: a pool starts a job at any time,
#: and the main process hears of it a moment later.
DISAGREEMENT = 5.0

#: Seconds between two tries to be the one that comes to rest.
TRY_INTERVAL = 1.0


class Probation:
    """Decides in each turn of one channel whether a suspect has its process for itself.

    An owner that runs nothing takes the next suspect at once. One that is busy stops claiming if
    it gets the lock of that queue list, and takes it when what runs has ended. Between two
    suspects it claims other jobs once: neither starves.
    """

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        self.in_flight = fetch.in_flight
        self._others_first = False
        self._resting = False
        self._next_try = 0.0
        #: Until when the lock is ours (monotonic s): several suspects are served for one.
        self._locked_until = 0.0
        #: Since when the server takes us for busy while nothing runs (monotonic s).
        self._idle_since = math.inf

    def has_the_floor(self, lists: Sequence[str]) -> bool:
        """True when nothing else may be claimed in this turn.

        Raises:
            redis.exceptions.RedisError: the server could not be asked.
        """
        if self.in_flight.alone is not None:
            return True
        suspected = self.in_flight.probation
        waiting = [name for name in lists if name in suspected] if suspected else []
        if not waiting or self._others_first:
            self._others_first = self._resting = False
            return False
        if self._busy():
            self._idle_since = math.inf
            return self._rests(waiting[0])
        self._put_aside()
        for name in waiting:
            if self._take(name):
                return True
            if name in self.in_flight.probation:
                self._mind_the_record()
                return self._rests(name)
        return False

    def _mind_the_record(self) -> None:
        """To the server we are busy. If that lasts, what it has recorded as running is not."""
        now = monotonic()
        self._idle_since = min(self._idle_since, now)
        if now - self._idle_since > DISAGREEMENT:
            self._idle_since = math.inf
            self.in_flight.doubt = True

    def _busy(self) -> bool:
        return self.in_flight.busy or bool(self.fetch.waiting)

    def _put_aside(self) -> None:
        """Give back what is claimed and was not delivered, and wait for no more."""
        reads = self.fetch.reads
        reads.call_off(reads.armed)
        self.in_flight.requeue(self.fetch.take_back_waiting())

    def _take(self, queue_list: str) -> bool:
        membership = self.fetch.membership
        claimed = self.in_flight.claim_alone(membership.owner, queue_list)
        if claimed is None:
            return False
        self._others_first = True
        self.fetch.ready.append(claimed)
        logger.warning(
            "Job %s is on probation: it runs alone in this process now, since it may be the one "
            "that killed others. Other jobs wait until it has ended.",
            claimed.job.title,
        )
        return True

    def _rests(self, queue_list: str) -> bool:
        """Whether this owner is one of those that come to rest."""
        now = monotonic()
        self._resting = self._resting or now < self._locked_until
        if not self._resting and now >= self._next_try:
            self._next_try = now + TRY_INTERVAL
            lock = self.in_flight.lists.keys.lock(f"probation:{queue_list}")
            self._resting = bool(
                self.in_flight.scripts.run("lock", [lock], [int(REST_INTERVAL * 1000)])
            )
            if self._resting:
                self._locked_until = now + REST_INTERVAL
        if self._resting:
            self._put_aside()
        return self._resting
