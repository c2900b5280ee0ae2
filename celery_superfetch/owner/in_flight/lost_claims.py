"""Reconciles what the server has for an owner with the leases of this process. After a lost reply
to a claim, the private list on the server (the jobs that this owner has claimed) may have jobs that
have no lease here, and so would never run. They are requeued.

The fetch loop calls ``reconcile`` (through ``Owner``), in the thread of the consumer's loop: after
a lost reply at once, and a minute later for a second check; after it has closed a blocking read
that the server may not have ended, for the second check alone. An owner that leaves calls it if a
reply was lost. The lock of the leases is held over all its round trips, so that no job is claimed
or acked in between. Each move is atomic. If the server comes back with older data, in which this
process has a former name, the owner calls ``requeue_unknown`` for that name.

If the process dies before a reconcile or in the middle, the reaper takes the jobs that are left
from the private list and the landing lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import monotonic

from ...model.job import Counters
from ...store.batches import MOVES_PER_SCRIPT
from ...store.private_lists import CLAIM_MAX_BYTES, Held
from .lease import Event, Lease
from .pending import PendingLeases

#: Seconds from a reconcile to its second check: a network that stalled may bring a claim late.
LATE_CLAIM = 60.0

#: Seconds for which acked claims are remembered. A replica that is promoted lags by seconds.
ACKED_REMEMBERED_S = 120.0


class LostClaims:
    """Claims of this process that have no lease, since the reply to them was lost."""

    def __init__(self, pending: PendingLeases) -> None:
        self.pending, self.leases, self.lists = pending, pending.leases, pending.lists
        #: When the second check is due (monotonic s); infinite: none is.
        self._second_check_at = math.inf
        #: The second check is repeated until one is made at this time or later (monotonic s); see
        #: ``expect_late``.
        self._last_check_from = 0.0

    @property
    def due(self) -> bool:
        """Return whether a reply was lost, or the second check is due."""
        return self.pending.needs_reconcile or monotonic() >= self._second_check_at

    @property
    def none_left(self) -> bool:
        """Return whether the server surely has no claim of this process without a lease, and no
        earlier command can still bring one."""
        return not self.pending.needs_reconcile and self._second_check_at == math.inf

    def expect_late(self) -> None:
        """Make a second check due, since a blocking read that was closed may still bring a job: the
        server may not have ended it. If another read is closed before that check, it is not the
        last one."""
        self._last_check_from = monotonic() + LATE_CLAIM
        self._second_check_at = min(self._second_check_at, self._last_check_from)

    def reconcile(self, owner: str, lists: Mapping[str, int]) -> int:
        """Requeue two kinds of jobs, and return how many: those in the landing lists, where
        blocking reads put jobs before they are claimed, and those that are claimed and have no
        lease. A job that was acked recently is acked again instead: a promoted replica may not have
        seen the ack.

        Arguments:
            lists: the queue lists (-> ms of x-expires) whose landing lists are emptied.

        Raises:
            RedisError: the server cannot be reached; the reconcile is due again.
        """
        pending = self.pending
        with pending.lock:
            pending.flush()
            was_lost, is_second = pending.needs_reconcile, monotonic() >= self._second_check_at
            # A reply that is lost from here on makes another reconcile due.
            pending.needs_reconcile = False
            try:
                requeued_count = self.requeue_unknown(owner, lists)
            except BaseException:  # also the end of a greenlet, and what a signal handler raises
                pending.needs_reconcile = True
                raise
            # If this was the second check of an earlier loss, and another reply was lost meanwhile,
            # the new loss needs a second check of its own.
            is_last = is_second and not was_lost and monotonic() >= self._last_check_from
            self._second_check_at = math.inf if is_last else monotonic() + LATE_CLAIM
            return requeued_count

    def requeue_unknown(self, owner: str, lists: Mapping[str, int]) -> int:
        """Do the work of ``reconcile``, for the present name of this process or a former one."""
        with self.pending.lock:
            requeued_count = self.lists.return_landed(owner, lists)
            held = self.lists.held(owner)
            self._correct_waiting_notes(owner, held)
            requeued_count += self._requeue_claims(owner, held.claims)
            self.pending.flush()
            return requeued_count

    def _correct_waiting_notes(self, owner: str, held: Held) -> None:
        """Correct the waiting notes on the server, which are wrong if it came back with an older
        snapshot. If this process then died, the reaper would go by them. It would requeue a running
        job that has a note without a strike: a job that kills its processes would never be found.
        And a job that never began, and has no note, would get a strike."""
        claims = set(held.claims)
        for lease in self.leases:
            if lease.job.owner == owner and lease.job.claim_id in claims:
                has_note = lease.job.claim_id not in held.running
                wants_note = lease.may_start and lease.has_waiting_note
                if lease.runs if has_note else wants_note:
                    lease.has_waiting_note = has_note
                    self.pending.add(lease)  # the next send deletes the note, or puts it back

    def _requeue_claims(self, owner: str, claims: Sequence[str]) -> int:
        """Requeue the jobs of those ``claims`` that have no lease, or ack them again; return how
        many were requeued."""
        known = {lease.job.claim_id for lease in self.leases if lease.job.owner == owner}
        unknown = [id for id in claims if id not in known]
        since = monotonic() - ACKED_REMEMBERED_S
        acked = {id for at, id in self.pending.recently_acked if at > since}
        requeued_count = at = 0
        while at < len(unknown):
            jobs, read_count = self.lists.jobs(
                owner, unknown[at : at + MOVES_PER_SCRIPT], CLAIM_MAX_BYTES
            )
            at += read_count
            for job in jobs:
                # The server may have a history of the job. With counters, a later ack deletes it,
                # too.
                lease = Lease(job, Counters())
                self.leases.add(lease)
                if job.claim_id in acked:
                    self.leases.apply(lease, Event.ACK)
                    self.pending.add(lease)
                else:
                    self.pending.add_return(lease, Event.REQUEUE)
                    requeued_count += 1
            self.pending.flush()  # in batches, so that few payloads are in memory at once
        return requeued_count
