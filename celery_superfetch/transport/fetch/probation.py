"""Decides when a suspect (a job on probation) gets a solo run in this worker: at once if the worker
has no other job, otherwise after a quiesce.

- In a *solo run* a suspect is the only job of its owner, so that it is surely to blame if the owner
  dies. After its *solo window* (a number of seconds) other jobs may start alongside it.
- In a *quiesce* an owner claims nothing until its jobs have ended, so that it can make a solo run.
  The server lets one owner of a database at a time quiesce, with a time limit. After a quiesce of T
  seconds no owner may quiesce for ``WORK_FACTOR`` x T seconds (``quiesce.lua``).

``Probation.act`` chooses between these:

- The worker runs a suspect alone: wait until it ends, or until its solo window is over.
- The worker has no job, and its queues are empty: claim a suspect for a solo run.
- The worker has jobs, or its queues have: ask the server for a quiesce. When its jobs have ended,
  claim a suspect for a solo run. If the time limit comes first, claim one alongside the jobs.

The fetch loop of a channel calls this before it claims. If the process dies in a quiesce, that ends
at its time limit. A suspect that it had claimed is in its private list on the server, and the
reaper counts the death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

from kombu.log import get_logger

from ...model.log_text import one_line_each
from ...owner.owner import Owner
from ...store.queues import QuiesceAnswer, Suspects
from .backlog import Backlog

logger = one_line_each(get_logger(__name__))

#: Time limit (s) of the first quiesce. After one in vain the next is twice as long, so that some
#: quiesce is long enough for any job.
FIRST_QUIESCE_S = 60.0

#: Solo window (s) of a suspect's first solo run. If its owner dies after the window, alongside
#: other jobs, the window of the next solo run is ten times as long. So some window is long enough
#: for any job that kills its process.
FIRST_SOLO_WINDOW_S = 60.0

#: After a quiesce of T seconds no owner may quiesce for so many times T. So suspects cost at most a
#: tenth of one owner's time.
WORK_FACTOR = 10

#: Most queue lists in one call: its script reads the next suspect of each.
LISTS_PER_CALL = 100

TRY_INTERVAL_S = 1.0  # between two calls of the script


class Probation:
    """The solo runs and quiesces of one fetch loop."""

    #: The last claim was a suspect. Before the next suspect other jobs are claimed, for one tick: a
    #: queue of suspects must not keep all other jobs waiting.
    _others_first = False
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
        """True if no other job may be claimed now: in a solo run, and in a quiesce."""
        return self.owner.suspects.solo is not None or self._quiesces

    def act(self, lists: Sequence[str], queues_are_empty: bool) -> None:
        """End a solo window that is over; begin, continue or end a quiesce; claim a suspect of
        these lists if it may run now."""
        self._end_solo_window()
        if self.owner.suspects.solo is not None:
            if self._quiesces and self._is_time:
                self._delay_next_try()
                # The solo run counts as part of the quiesce that made it possible. So the server is
                # told, again and again, that the quiesce has lasted until now: from its length the
                # server computes for how long no owner may quiesce afterwards.
                self._ask_quiesce([])
            return
        waiting = self._waiting(lists)
        if not waiting or self._others_first:
            if self._quiesces:
                self._update_quiesce([])  # ends the quiesce
            self._others_first = False
            if waiting:  # the next tick claims the suspect, and must come even if no job arrives
                self._wake_loop()
            return
        is_busy = bool(self.owner.busy or self.backlog)
        # While the queues have jobs, a worker that runs none at this moment counts as busy, too.
        if (is_busy or not queues_are_empty) and self._is_time:
            self._delay_next_try()
            if self._update_quiesce(waiting):
                for name in waiting:
                    self._claim_alongside(name)
        if self._quiesces or (queues_are_empty and not is_busy):
            self._requeue_undelivered()
            if not is_busy:
                self._claim_first(waiting)

    def _end_solo_window(self) -> None:
        """Allow other jobs to start alongside a suspect whose solo window is over."""
        suspect = self.owner.suspects.end_solo()
        if suspect is not None:
            logger.info(
                "Job %s on probation has used up its time in isolation and continues: other jobs "
                "may now start alongside it.",
                suspect.title,
            )

    def _waiting(self, lists: Sequence[str]) -> list[str]:
        """Return those of some queue lists that have suspects, as far as this owner knows."""
        with_suspects = self.owner.suspects.lists
        if not with_suspects:
            return []
        return [*islice((name for name in lists if name in with_suspects), LISTS_PER_CALL)]

    def _claim_first(self, waiting: Sequence[str]) -> None:
        """Claim one suspect, of the first queue list that still has one, for a solo run."""
        for name in waiting:
            lease = self.owner.suspects.claim_alone(
                self.owner.name, name, _solo_window, self.backlog
            )
            if lease is not None:
                self._others_first = True
                # The jobs that have not started are requeued together, in their order. If they
                # stayed, the gate would refuse and requeue one after the other, each to the front
                # of its queue, and the newest would be first there.
                self._requeue_waiting()
                self.backlog.ready.append(lease)
                logger.warning(
                    "Job %s is on probation and now runs in isolation, since it may have killed "
                    "other workers. This process starts no other job until it has ended, or for "
                    "%g s.",
                    lease.job.title,
                    _solo_window(lease.claimed.solo_runs),
                )
                return

    def _claim_alongside(self, queue_list: str) -> None:
        lease = self.owner.suspects.claim_alongside(
            self.owner.name, queue_list, _solo_window, self.backlog
        )
        if lease is not None:
            self.backlog.ready.append(lease)
            logger.warning(
                "Job %s is on probation but does not run in isolation: the other jobs of this "
                "worker have not ended in time. It now runs alongside them.",
                lease.job.title,
            )

    @property
    def _is_time(self) -> bool:
        return monotonic() >= self._next_try

    def _delay_next_try(self) -> None:
        self._next_try = monotonic() + TRY_INTERVAL_S

    def _update_quiesce(self, waiting: Sequence[str]) -> bool:
        """Begin, continue or end a quiesce for suspects of the ``waiting`` queue lists (without
        any: end it). Return whether a suspect may run alongside other jobs now, since a quiesce for
        it has reached its time limit."""
        answer = self._ask_quiesce(waiting)
        quiesces = answer.quiesces
        if quiesces and not self._quiesces:
            # Jobs that have not started are requeued for other workers. In this one they would
            # prolong the quiesce.
            self._requeue_waiting()
            logger.info(
                "This worker claims no jobs for a while, to run a job on probation in isolation "
                "once its own jobs have ended. Other workers continue."
            )
        elif self._quiesces and not quiesces:
            logger.info(
                "This worker claims jobs again. A job that is still on probation runs in "
                "isolation once a worker is idle, or alongside other jobs."
            )
        self._quiesces = quiesces
        return answer.alongside and not quiesces

    def _ask_quiesce(self, waiting: Sequence[str]) -> QuiesceAnswer:
        """Ask the server whether this owner may quiesce for suspects of some queue lists. Without
        any list, report that this owner's quiesce has lasted until now, and is no longer needed.
        """
        answer = self._suspects.ask_quiesce(self.owner.name, waiting, FIRST_QUIESCE_S, WORK_FACTOR)
        if answer.no_suspects:
            self.owner.suspects.remove_lists(waiting)
        return answer


def _solo_window(run_number: int) -> float:
    """Return the solo window (s) of a suspect in its solo run of this number, from 1."""
    return FIRST_SOLO_WINDOW_S * 10 ** max(0, run_number - 1)
