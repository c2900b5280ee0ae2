"""The claims of suspects of one process: alone in it, or alongside other jobs.

A *suspect* is a job on probation: it may have killed the process of an earlier owner, and waits in
a list of its own for a *solo run*, in which it is the only job of its process. No other job starts
alongside it until its *solo window* (a number of seconds) is over, or it has ended.

``Probation`` of the fetch loop decides when a suspect may run in this process, claims it and ends
the solo run, in the thread of the consumer's loop. A worker's gate reads ``solo``, and starts
nothing alongside. ``worker/job_limits.py`` puts a job on probation before its delivery. The
heartbeat thread replaces ``lists``; settlement and the maintenance thread add to it.

If the process dies, a suspect that it has claimed is in its private list on the server, recorded as
running since the claim, and the reaper counts the death as a strike, also if the job had not begun.
All else is in memory alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic

from ...model.job import Job
from ...store.private_lists import history_of
from .in_flight import InFlight
from .lease import Lease, State


class SuspectClaims:
    """The queue lists with suspects, as far as this process knows, and the suspects that it has
    claimed. Any thread may call it: if two change ``lists`` at once, a change may be lost until the
    next heartbeat."""

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight, self.leases, self.pending = in_flight, in_flight.leases, in_flight.pending
        #: Queue lists with suspects; each heartbeat replaces them.
        self.lists: frozenset[str] = frozenset()
        #: End of the solo window of the suspect that was claimed last (monotonic s). It limits two
        #: things. If the suspect has a solo run, no other job starts before that. If it runs
        #: alongside other jobs, no second suspect is claimed before that.
        self.solo_until = 0.0

    def add_lists(self, lists: Collection[str]) -> None:
        """Add queue lists that have suspects."""
        self.lists |= {*lists}

    def remove_lists(self, lists: Collection[str]) -> None:
        """Remove queue lists that have no suspects."""
        self.lists -= {*lists}

    @property
    def solo(self) -> Lease | None:
        """The lease of the suspect in its solo run; None: there is no solo run."""
        return self.leases.solo

    def claim_alone(
        self,
        owner: str,
        queue_list: str,
        solo_window: Callable[[int], float],
        backlog: object = None,
    ) -> Lease | None:
        """Claim the next suspect of a queue list for a solo run; return its lease. This process may
        have jobs that wait for their start: the gate starts none of them meanwhile.

        Return None if there is no suspect, if a job of this process runs or may run, or if the
        reply to an earlier claim was lost: that claim may have brought a suspect which has no
        lease here.

        Arguments:
            solo_window: returns the solo window (s) for the number of the solo run, from 1.
            backlog: the backlog of the channel that claims (see ``InFlight.requeue_strays``).
        """
        with self.pending.lock:
            self.pending.flush()
            runs = any(lease.runs and not lease.has_run for lease in self.leases)
            # DELIVERED: its consumer does not report when it begins, so it may have.
            if runs or self.leases.counts[State.DELIVERED]:
                return None
            lease = self._claim(owner, queue_list, backlog)
            if lease is not None:
                self.leases.solo = lease
                self.solo_until = monotonic() + solo_window(lease.claimed.solo_runs)
            return lease

    def claim_alongside(
        self,
        owner: str,
        queue_list: str,
        solo_window: Callable[[int], float],
        backlog: object = None,
    ) -> Lease | None:
        """Claim the next suspect of a queue list to run alongside other jobs. The fetch loop does
        so after a *quiesce* that reached its time limit: this process had claimed nothing, and
        still its jobs did not end. Arguments and result as ``claim_alone``.

        No second suspect is claimed in the solo window of the first. If two ran together each time,
        and one of them kills its process, the other one would be blamed for each death, too.
        """
        with self.pending.lock:
            self.pending.flush()
            has_suspect = any(lease.is_suspect for lease in self.leases)
            if has_suspect and monotonic() < self.solo_until:
                return None
            lease = self._claim(owner, queue_list, backlog, alongside=True)
            if lease is not None:
                self.solo_until = monotonic() + solo_window(lease.claimed.solo_runs)
            return lease

    def _claim(
        self, owner: str, queue_list: str, backlog: object, *, alongside: bool = False
    ) -> Lease | None:
        if self.pending.needs_reconcile:
            return None
        call = self.pending.lists.claim_suspect(owner, queue_list, alongside)
        reply = self.pending.flush(call)
        try:
            # The next heartbeat names the list again, and the paused queue with it.
            if reply[0] in (b"none", b"paused"):
                self.remove_lists([queue_list])
            if reply[0] != b"ok":
                return None
            # the last argument is the claim id
            job = Job(owner, queue_list, reply[1], call.args[-1])
            history = history_of(reply[2])
            lease = Lease(job, history, backlog, has_waiting_note=False, is_suspect=True)
            self.leases.add(lease)
        except BaseException:  # also what a signal handler raises: the job may have no lease
            self.pending.needs_reconcile = True
            raise
        return lease

    def end_solo(self) -> Job | None:
        """End the solo run if its window is over, although the job may still run: other jobs may
        start from now on. Return its job, for the log; None if no window is over."""
        with self.pending.lock:
            solo = self.leases.solo
            if solo is None or monotonic() < self.solo_until:
                return None
            self.leases.solo = None
            return solo.job

    def put_on_probation(self, lease: Lease) -> None:
        """Requeue a job so that it waits for a solo run. Its mark is on the server before the
        requeue is sent: if this process dies in between, the reaper puts the job on probation."""
        with self.pending.lock:
            self.pending.lists.mark_suspect(lease.job)
            self.in_flight.requeue([lease])
            self.add_lists([lease.job.queue_list])
