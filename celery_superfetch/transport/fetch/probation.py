"""Decides when a suspect (a job on probation) gets a solo run in this worker: at once if the worker
has no other job, else after a quiesce.

- In a *solo run* a suspect is the only job of its owner, so that it is surely to blame if the owner
  dies. After its *solo window* other jobs may start alongside it.
- In a *quiesce* an owner claims nothing until its jobs have ended, to have room for a solo run. The
  server lets one owner of a database at a time quiesce, with a time limit, and then no owner for
  ``WORK_FACTOR`` times as long (``make_room.lua``).

The fetch loop of a channel calls this before it claims. If the process dies in a quiesce, that ends
at its time limit; a suspect that it had claimed is in its private list, and the reaper counts the
death.
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
FIRST_QUIESCE_S = 60.0

#: Solo window (s) of a suspect's first solo run. If its owner dies after it, alongside other jobs,
#: the next one is ten times as long: one of them is long enough for any job that kills its process.
FIRST_SOLO_WINDOW_S = 60.0

#: For how many times as long as a quiesce took no owner quiesces after it: suspects cost at most a
#: tenth of one owner's time.
WORK_FACTOR = 10

#: Most queue lists in one call: its script reads the next suspect of each.
MOST_LISTS = 100

TRY_INTERVAL_S = 1.0  # between two calls of the script


class Probation:
    """The solo runs and quiesces of one fetch loop."""

    _others_first = False  # a suspect was claimed: other jobs are claimed before the next suspect
    _quiesces = False  # this owner claims nothing until its jobs have ended
    _next_try = 0.0  # monotonic s

    def __init__(
        self,
        owner: Owner,
        backlog: Backlog,
        wake_loop: Callable[[], object],
        requeue_undelivered: Callable[[], object],
        requeue_waiting: Callable[[], int],
    ) -> None:
        """
        Arguments:
            wake_loop: lets the next tick come at once.
            requeue_undelivered: requeues the jobs that were not delivered.
            requeue_waiting: requeues the jobs that were not started.
        """
        self.owner, self.backlog = owner, backlog
        self._wake_loop = wake_loop
        self._requeue_undelivered, self._requeue_waiting = requeue_undelivered, requeue_waiting
        self._suspects = Suspects(owner.database)

    def is_due(self, lists: Sequence[str]) -> bool:
        """Return whether ``act`` has something to do: a suspect waits, has its solo run, or was
        claimed last; or this owner quiesces."""
        return self.excludes_others or self._others_first or bool(self._waiting(lists))

    @property
    def excludes_others(self) -> bool:
        """Whether no other job may be claimed now: in a solo run, and in a quiesce."""
        return self.owner.suspects.solo is not None or self._quiesces

    def act(self, lists: Sequence[str], queues_are_empty: bool) -> None:
        """End a solo window that is over; begin, continue or end a quiesce; claim a suspect of
        these lists if it may run now."""
        self._end_solo_window()
        if self.owner.suspects.solo is not None:
            if self._quiesces and self._is_time:
                self._delay_next_try()
                # The quiesce counts as long as the solo run lasts: the server is told that it has
                # lasted until now. From its length it computes for how long no owner quiesces next.
                self._ask([])
            return
        waiting = self._waiting(lists)
        if not waiting or self._others_first:
            if self._quiesces:
                self._quiesce_for([])
            self._others_first = False
            if waiting:  # the next tick claims it, and has to come also if no other job arrives
                self._wake_loop()
            return
        is_busy = bool(self.owner.busy or self.backlog)
        # While the queues have jobs, a worker that runs none at this moment counts as busy, too.
        if (is_busy or not queues_are_empty) and self._is_time:
            self._delay_next_try()
            if self._quiesce_for(waiting):
                for name in waiting:
                    self._claim_alongside(name)
        if self._quiesces or (queues_are_empty and not is_busy):
            self._requeue_undelivered()
            if not is_busy:
                self._claim_first(waiting)

    def _end_solo_window(self) -> None:
        """Let other jobs start alongside the suspect that has run alone for its time limit."""
        suspect = self.owner.suspects.end_solo()
        if suspect is not None:
            logger.info(
                "Job %s, on probation, has had this process for itself for long enough: from now "
                "on others may start beside it.",
                suspect.title,
            )

    def _waiting(self, lists: Sequence[str]) -> list[str]:
        """Return those of some queue lists that have suspects, as far as this owner knows."""
        with_suspects = self.owner.suspects.lists
        if not with_suspects:
            return []
        return [*islice((name for name in lists if name in with_suspects), MOST_LISTS)]

    def _claim_first(self, waiting: Sequence[str]) -> None:
        """Claim one suspect, of the first queue list that still has one, for a solo run."""
        for name in waiting:
            lease = self.owner.suspects.claim_alone(self.owner.name, name, _solo_window)
            if lease is not None:
                self._others_first = True
                # All at once, so that they keep their order. If they stayed, the gate would refuse
                # and requeue one after the other, each to the front of its queue: the newest would
                # be first there.
                self._requeue_waiting()
                self.backlog.ready.append(lease)
                logger.warning(
                    "Job %s is on probation: it runs alone in this process now, since it may be "
                    "the one that killed others. Other jobs wait until it has ended, but no longer "
                    "than %g s.",
                    lease.job.title,
                    _solo_window(lease.claimed.probation),
                )
                return

    def _claim_alongside(self, queue_list: str) -> None:
        lease = self.owner.suspects.claim_alongside(self.owner.name, queue_list, _solo_window)
        if lease is not None:
            self.backlog.ready.append(lease)
            logger.warning(
                "Job %s is on probation, and this worker could not make room for it in time: its "
                "other jobs did not end, or wait for this one. It runs alongside them now.",
                lease.job.title,
            )

    @property
    def _is_time(self) -> bool:
        return monotonic() >= self._next_try

    def _delay_next_try(self) -> None:
        self._next_try = monotonic() + TRY_INTERVAL_S

    def _quiesce_for(self, waiting: Sequence[str]) -> bool:
        """Begin, continue or end a quiesce for suspects of the ``waiting`` queue lists; return
        whether one may run alongside others now."""
        room = self._ask(waiting)
        quiesces = room.quiesces
        if quiesces and not self._quiesces:
            # Other workers run the jobs that have not started: in this one they would prolong the
            # quiesce.
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
        """Ask the server whether this owner may quiesce for suspects of some queue lists. Without
        any, tell it that the quiesce has lasted until now and has served its purpose."""
        room = self._suspects.make_room(self.owner.name, waiting, FIRST_QUIESCE_S, WORK_FACTOR)
        if room.none:
            self.owner.suspects.remove_lists(waiting)
        return room


def _solo_window(run_number: int) -> float:
    """Return the solo window (s) of a suspect in its solo run of this number, from 1."""
    return FIRST_SOLO_WINDOW_S * 10 ** max(0, run_number - 1)
