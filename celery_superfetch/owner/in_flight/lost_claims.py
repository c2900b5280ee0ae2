"""Claims whose reply was lost: what the server has for this owner, and nobody here knows."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from time import monotonic

from ...model.job import Counters
from ...store.batches import BATCH
from ...store.private_lists import CLAIM_BYTES, Held
from .lease import Lease
from .outbox import Outbox

#: Seconds from one look to the second: a network that stood still may bring a claim in between.
LATE_CLAIM = 60.0

#: Seconds for which settled jobs are remembered. A replica that is promoted lags by seconds.
SETTLED = 120.0


class LostClaims:
    def __init__(self, outbox: Outbox) -> None:
        self.outbox, self.leases, self.lists = outbox, outbox.leases, outbox.lists
        #: When a doubt that was cleared is looked into once more (monotonic s).
        self._second_look = math.inf

    @property
    def due(self) -> bool:
        return self.outbox.doubt or monotonic() >= self._second_look

    @property
    def none_left(self) -> bool:
        """Whether the server has nothing of ours that nobody here knows, nor will."""
        return not self.outbox.doubt and self._second_look == math.inf

    def reconcile(self, owner: str, lists: Mapping[str, int]) -> int:
        """Give back what landed from some queue lists (-> ms of x-expires), and what is claimed and
        nobody here knows, since its reply was lost; the number of jobs. What was settled lately is
        settled again: a promoted replica may not have seen it."""
        outbox = self.outbox
        with outbox.lock:
            outbox.flush()
            # A doubt that comes up from here on asks for another look.
            outbox.doubt = False
            try:
                back = self.lists.unland(owner, lists)
                held = self.lists.held(owner)
                self._record_starts_again(owner, held)
                back += self._requeue_unknown(owner, held.claims)
                outbox.flush()
            except BaseException:  # also the end of a greenlet, and what a signal handler raises
                outbox.doubt = True
                raise
            # A first look asks for a second.
            now = monotonic()
            self._second_look = math.inf if now >= self._second_look else now + LATE_CLAIM
            return back

    def _record_starts_again(self, owner: str, held: Held) -> None:
        """Record that jobs run which the server has as waiting: where it came back from an older
        snapshot, the death of their owner would be no strike for them."""
        waiting = set(held.claims) - held.running
        for lease in self.leases:
            if lease.job.owner == owner and lease.job.claim_id in waiting and lease.runs:
                self.outbox.record(lease)

    def _requeue_unknown(self, owner: str, claims: Sequence[str]) -> int:
        ours = {lease.job.claim_id for lease in self.leases if lease.job.owner == owner}
        unknown = [id for id in claims if id not in ours]
        since = monotonic() - SETTLED
        lately = {id for at, id in self.outbox.lately if at > since}
        back = at = 0
        while at < len(unknown):
            jobs, seen = self.lists.jobs(owner, unknown[at : at + BATCH], CLAIM_BYTES)
            at += seen
            # Each may have a history: its ack deletes that, too.
            leases = [Lease(job, Counters()) for job in jobs]
            for lease in leases:
                self.leases.add(lease)
            leases = self._settle_again(leases, lately)
            self.outbox.requeue(leases)
            back += len(leases)
        return back

    def _settle_again(self, leases: Sequence[Lease], lately: Collection[str]) -> list[Lease]:
        """Ack the jobs whose claims were settled ``lately``; return the other leases."""
        others = []
        for lease in leases:
            if lease.job.claim_id in lately:
                self.outbox.ack(lease)
            else:
                others.append(lease)
        return others
