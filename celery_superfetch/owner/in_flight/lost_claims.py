"""Reconciles the private list of an owner with the leases of this process: if the reply to a claim
was lost, the private list has jobs without a lease.

The fetch loop calls ``reconcile`` (through ``Owner``) when a reply was lost, and a minute later, in
the thread of the consumer's loop. An owner that leaves calls it, too. If the process dies before
that or in the middle, the reaper takes those jobs from the private list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import monotonic

from ...model.job import Counters
from ...store.batches import BATCH
from ...store.private_lists import CLAIM_BYTES, Held
from .lease import Event, Lease
from .pending import PendingLeases

#: Seconds from a reconcile to its second check: a network that stalled may bring a claim late.
LATE_CLAIM = 60.0

#: Seconds for which acked claims are remembered. A replica that is promoted lags by seconds.
REMEMBERED = 120.0


class LostClaims:
    """Claims of this process that have no lease, since the reply to them was lost."""

    def __init__(self, pending: PendingLeases) -> None:
        self.pending, self.leases, self.lists = pending, pending.leases, pending.lists
        #: When the second check is due (monotonic s).
        self._second_look = math.inf

    @property
    def due(self) -> bool:
        """Return whether a reply was lost, or the second check is due."""
        return self.pending.needs_reconcile or monotonic() >= self._second_look

    @property
    def none_left(self) -> bool:
        """Return whether the server has no claim without a lease, and will get none."""
        return not self.pending.needs_reconcile and self._second_look == math.inf

    def reconcile(self, owner: str, lists: Mapping[str, int]) -> int:
        """Requeue the jobs in the landing lists of some queue lists (-> ms of x-expires), where
        blocking reads put them, and claims that have no lease; return the number of jobs. Jobs that
        were acked recently are acked again: a promoted replica may not have seen that.

        Raises RedisError where the server cannot be asked; the reconcile is due again.
        """
        pending = self.pending
        with pending.lock:
            pending.flush()
            was_lost, is_second = pending.needs_reconcile, monotonic() >= self._second_look
            # A reply that is lost from here on asks for another reconcile.
            pending.needs_reconcile = False
            try:
                back = self.lists.unland(owner, lists)
                held = self.lists.held(owner)
                self._record_starts_again(owner, held)
                back += self._requeue_unknown(owner, held.claims)
                pending.flush()
            except BaseException:  # also the end of a greenlet, and what a signal handler raises
                pending.needs_reconcile = True
                raise
            # If this was the second check of an earlier loss, and another reply was lost meanwhile,
            # the new loss needs a second check of its own.
            is_last = is_second and not was_lost
            self._second_look = math.inf if is_last else monotonic() + LATE_CLAIM
            return back

    def _record_starts_again(self, owner: str, held: Held) -> None:
        """Record again the starts of running jobs for which the server has a waiting note. It has
        one if it came back with an older snapshot; without the start record, the death of their
        owner would be no strike for them."""
        waiting = set(held.claims) - held.running
        for lease in self.leases:
            if lease.job.owner == owner and lease.job.claim_id in waiting and lease.runs:
                lease.has_waiting_note = True
                self.pending.add(lease)

    def _requeue_unknown(self, owner: str, claims: Sequence[str]) -> int:
        known = {lease.job.claim_id for lease in self.leases if lease.job.owner == owner}
        unknown = [id for id in claims if id not in known]
        since = monotonic() - REMEMBERED
        acked = {id for at, id in self.pending.recently_acked if at > since}
        back = at = 0
        while at < len(unknown):
            jobs, seen = self.lists.jobs(owner, unknown[at : at + BATCH], CLAIM_BYTES)
            at += seen
            for job in jobs:
                # It may have a history: an ack deletes that, too.
                lease = Lease(job, Counters())
                self.leases.add(lease)
                if job.claim_id in acked:
                    self.leases.apply(lease, Event.ACK)
                    self.pending.add(lease)
                else:
                    self.pending.add_return(lease, Event.REQUEUE)
                    back += 1
            self.pending.flush()  # batch by batch: each job is in memory until it has left
        return back
