"""Decides when a suspect (a job on probation) runs alone in this worker: at once if the worker has
no other job, else after a quiesce, in which the worker claims nothing until its jobs have ended.

A job that runs alone when its worker dies is surely to blame. The fetch loop of a channel calls
this before it claims. If the process dies in a quiesce, that ends at its time limit on the server
(``make_room.lua``); a suspect that it had claimed is in its private list, and the reaper counts
the death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

from kombu.log import get_logger

from ...model.log_text import one_line_each
from ...owner.owner import Owner
from ...store.queues import Room, Suspects
from .backlog import Backlog

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
    """The decision of one fetch loop whether a suspect has the process for itself."""

    _others_first = False  # a suspect was claimed: other jobs come before the next suspect
    _quiesces = False  # this owner claims nothing until its jobs have ended
    _next_try = 0.0  # monotonic s

    def __init__(
        self,
        owner: Owner,
        backlog: Backlog,
        wake_loop: Callable[[], object],
        put_aside: Callable[[], object],
        requeue_waiting: Callable[[], int],
    ) -> None:
        """
        Arguments:
            wake_loop: lets the next tick come at once.
            put_aside: requeues the jobs that were not delivered.
            requeue_waiting: requeues the jobs that were not started.
        """
        self.owner, self.backlog = owner, backlog
        self._wake_loop, self._put_aside = wake_loop, put_aside
        self._requeue_waiting = requeue_waiting
        self._suspects = Suspects(owner.database)

    def is_due(self, lists: Sequence[str]) -> bool:
        """Return whether ``act`` has something to do: a suspect waits, runs alone, or has just
        begun."""
        is_active = self.owner.leases.solo_job is not None or self._quiesces or self._others_first
        return is_active or bool(self._waiting(lists))

    @property
    def excludes_others(self) -> bool:
        """Whether no other job may be claimed now: a suspect runs alone, or this owner quiesces."""
        return self.owner.leases.solo_job is not None or self._quiesces

    def act(self, lists: Sequence[str], queues_are_empty: bool) -> None:
        """End a solo window that has lasted long enough; begin, continue or end a quiesce; claim a
        suspect of these lists if it may run now."""
        self._end_solo_window()
        if self.owner.leases.solo_job is not None:
            if self._quiesces and self._is_time:
                self._delay_next_try()
                self._ask([])  # the quiesce lasts as long as the run, which counts for the pause
            return
        waiting = self._waiting(lists)
        if not waiting or self._others_first:
            if self._quiesces:
                self._quiesce_for([])
            self._others_first = False
            if waiting:  # the next tick has to come for it, also if no other job arrives
                self._wake_loop()
            return
        is_busy = bool(self.owner.busy or self.backlog)
        # If the queues are not empty, a worker that is idle between two jobs counts as busy.
        if (is_busy or not queues_are_empty) and self._is_time:
            self._delay_next_try()
            if self._quiesce_for(waiting):
                for name in waiting:
                    self._claim_alongside(name)
        if self._quiesces or (queues_are_empty and not is_busy):
            self._put_aside()
            if not is_busy:
                self._claim_first(waiting)

    def _end_solo_window(self) -> None:
        """Let other jobs start alongside the suspect that has run alone for its time limit."""
        alone = self.owner.leases.end_solo()
        if alone is not None:
            logger.info(
                "Job %s, on probation, has had this process for itself for long enough: from now "
                "on others may start beside it.",
                alone.title,
            )

    def _waiting(self, lists: Sequence[str]) -> list[str]:
        """Return those of some queue lists that have suspects, as far as the owner has heard."""
        suspects = self.owner.leases.suspects
        waiting = (name for name in lists if name in suspects) if suspects else ()
        return [*islice(waiting, MOST_LISTS)]

    def _claim_first(self, waiting: Sequence[str]) -> None:
        """Claim one suspect, of the first queue list that still has one, to run alone."""
        for name in waiting:
            claimed = self.owner.leases.claim_alone(self.owner.name, name, _solitude)
            if claimed is not None:
                self._others_first = True
                self.backlog.ready.append(claimed)
                logger.warning(
                    "Job %s is on probation: it runs alone in this process now, since it may be "
                    "the one that killed others. Other jobs wait until it has ended, but no longer "
                    "than %g s.",
                    claimed.job.title,
                    _solitude(claimed.probation),
                )
                return

    def _claim_alongside(self, queue_list: str) -> None:
        claimed = self.owner.leases.claim_alongside(self.owner.name, queue_list, _solitude)
        if claimed is not None:
            self.backlog.ready.append(claimed)
            logger.warning(
                "Job %s is on probation, and this worker could not make room for it in time: its "
                "other jobs did not end, or wait for this one. It runs alongside them now.",
                claimed.job.title,
            )

    @property
    def _is_time(self) -> bool:
        return monotonic() >= self._next_try

    def _delay_next_try(self) -> None:
        self._next_try = monotonic() + TRY_INTERVAL

    def _quiesce_for(self, waiting: Sequence[str]) -> bool:
        """Begin, continue or end a quiesce for suspects of the ``waiting`` queue lists; return
        whether one may run alongside others now."""
        room = self._ask(waiting)
        quiesces = room.quiesces
        if quiesces and not self._quiesces:
            # Other workers run the jobs that have not started: here they would prolong the quiesce.
            self._requeue_waiting()
            logger.info(
                "A job is on probation, and this worker is the one that makes room for it: it "
                "claims nothing for a while, and runs that job alone if its own end meanwhile. "
                "Other workers go on."
            )
        elif self._quiesces and not quiesces:
            logger.info(
                "This worker claims jobs again. What is still on probation runs alone as soon as a "
                "worker runs nothing, or alongside other jobs now."
            )
        self._quiesces = quiesces
        return room.alongside and not quiesces

    def _ask(self, waiting: Sequence[str]) -> Room:
        """Call the script: may this owner quiesce for suspects of some queue lists? With none: its
        quiesce has lasted until now, and a suspect has run."""
        room = self._suspects.make_room(self.owner.name, waiting, FIRST_REST, WORK)
        if room.none:
            self.owner.leases.found_no_suspects(waiting)
        return room


def _solitude(level: int) -> float:
    """Return for how many seconds no other job starts alongside a suspect, in its solo run number
    ``level``."""
    return SOLITUDE * 10 ** max(0, level - 1)
