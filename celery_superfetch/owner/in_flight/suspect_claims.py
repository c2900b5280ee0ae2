"""The claims of suspects (jobs on probation) of one process: alone in it, or alongside other jobs.

The fetch loop's ``Probation`` decides when a suspect may run here, and claims it; the gate starts
nothing beside a solo run. If the process dies, the suspect is in the private list, recorded as
running since its claim, and the reaper counts the death.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic

from ...model.job import Job
from ...store.private_lists import earlier_of
from .in_flight import InFlight
from .lease import Lease, State


class SuspectClaims:
    """The queue lists with suspects, as far as this process knows, and the suspects that it has
    claimed. Thread-safe."""

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight, self.leases, self.pending = in_flight, in_flight.leases, in_flight.pending
        #: Queue lists with suspects; each heartbeat replaces them.
        self.lists: frozenset[str] = frozenset()
        #: Until then (monotonic s) no other job starts alongside the solo job; and no other suspect
        #: alongside one that runs alongside other jobs.
        self.solo_until = 0.0

    def add_lists(self, lists: Collection[str]) -> None:
        """Note that some queue lists have suspects."""
        self.lists |= {*lists}

    def remove_lists(self, lists: Collection[str]) -> None:
        """Note that some queue lists have no suspects."""
        self.lists -= {*lists}

    @property
    def solo(self) -> Lease | None:
        """The lease of the suspect that has this process for itself."""
        return self.leases.solo

    def claim_alone(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Lease | None:
        """Claim the next suspect of a queue list, if there is one, and no job runs here or may run:
        a lost reply may have brought another suspect. No job starts alongside it for the
        ``solo_window`` of its level (s)."""
        with self.pending.lock:
            self.pending.flush()
            counts = self.leases.counts
            # A job that is with a consumer without requests may have begun.
            if counts[State.DELIVERED] or counts[State.RUNNING] or counts[State.DETACHED]:
                return None
            lease = self._claim(owner, queue_list)
            if lease is not None:
                self.leases.solo = lease
                self.solo_until = monotonic() + solo_window(lease.claimed.probation)
            return lease

    def claim_alongside(
        self, owner: str, queue_list: str, solo_window: Callable[[int], float]
    ) -> Lease | None:
        """Claim the next suspect of a queue list to run alongside other jobs, if a quiesce for it
        was in vain. No other suspect starts for the ``solo_window`` of its level (s): if two
        started together, one would be blamed for the other's deaths again and again."""
        with self.pending.lock:
            self.pending.flush()
            has_suspect = any(lease.is_suspect for lease in self.leases)
            if has_suspect and monotonic() < self.solo_until:
                return None
            lease = self._claim(owner, queue_list, alongside=True)
            if lease is not None:
                self.solo_until = monotonic() + solo_window(lease.claimed.probation)
            return lease

    def _claim(self, owner: str, queue_list: str, alongside: bool = False) -> Lease | None:
        if self.pending.needs_reconcile:
            return None
        call = self.pending.lists.claim_suspect(owner, queue_list, alongside)
        reply = self.pending.flush(call)
        if reply[0] == b"none":
            self.remove_lists([queue_list])
        if reply[0] != b"ok":
            return None
        job = Job(owner, queue_list, reply[1], call.args[-1])
        lease = Lease(job, earlier_of(reply[2]), has_waiting_note=False, is_suspect=True)
        self.leases.add(lease)
        return lease

    def end_solo(self) -> Job | None:
        """End the solo run of a suspect whose window is over: other jobs may start; return it."""
        with self.pending.lock:
            solo = self.leases.solo
            if solo is None or monotonic() < self.solo_until:
                return None
            self.leases.solo = None
            return solo.job

    def put_on_probation(self, lease: Lease) -> None:
        """Requeue a job to wait for a solo run. If this process dies in between, the job is marked,
        and whatever returns it puts it there."""
        with self.pending.lock:
            self.pending.lists.mark_suspect(lease.job)
            self.in_flight.requeue([lease])
            self.add_lists([lease.job.queue_list])
