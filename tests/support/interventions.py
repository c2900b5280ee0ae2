"""What tests change in the code that has the jobs in flight: a mechanism is taken out, for the
control of its test, or a moment is held.

Beside ``driver.py`` and ``fault_mutants.py`` only this file knows the modules of
``celery_superfetch.owner.in_flight``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery_superfetch.model.start_permit import clock
from celery_superfetch.owner.in_flight.in_flight import InFlight
from celery_superfetch.owner.in_flight.lease import Event, Lease
from celery_superfetch.owner.in_flight.lost_claims import LostClaims
from celery_superfetch.owner.in_flight.lost_jobs import LostJobs
from celery_superfetch.owner.in_flight.pending import PendingLeases
from celery_superfetch.owner.in_flight.suspect_claims import SuspectClaims
from celery_superfetch.owner.owner import Owner

if TYPE_CHECKING:
    import pytest  # a worker that imports this file has none

# -- one owner of this process


@contextmanager
def starts_withheld(owner: Owner) -> Iterator[None]:
    """Let no job of an owner start meanwhile, as if its heartbeats had no reply."""
    begin, owner.leases.start = owner.leases.start, lambda *_, **__: 0.0
    try:
        yield
    finally:
        owner.leases.start = begin


def start_next_too_late(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object] = int
) -> None:
    """Let the next start of an owner be past its deadline; ``act`` is called in between."""
    begin = owner.leases.start

    def begin_late(lease: Lease, **how: Any) -> float:
        if deadline := begin(lease, **how):
            monkeypatch.setattr(owner.leases, "start", begin)
            act()
        return deadline and clock() - 1

    monkeypatch.setattr(owner.leases, "start", begin_late)


# -- all owners of this process, until it ends


def call_before_acks(act: Callable[[], object]) -> None:
    """Call a function before each ack."""
    ack = InFlight.ack

    def act_and_ack(self: InFlight, lease: Lease) -> None:
        act()
        ack(self, lease)

    InFlight.ack = act_and_ack


def announce_in_sends() -> None:
    """Announce lost jobs in the thread that sends, while it holds the lock of all leases."""
    flush = PendingLeases.flush

    def flush_and_announce(self: PendingLeases, *args: Any, **how: Any) -> Any:
        with self.lock:
            reply = flush(self, *args, **how)
            self.announcements.make()
            return reply

    PendingLeases.flush = flush_and_announce


def log_at_once() -> None:
    """Write each log line where its cause is found, also under the lock of all leases."""
    PendingLeases.log_later = lambda self, log, *args: log(*args)


def reconcile_nothing() -> None:
    """Let claims whose reply was lost stay in the private list."""

    def reconcile(self: LostClaims, *_: Any) -> int:
        self.pending.needs_reconcile = False
        return 0

    LostClaims.reconcile = reconcile


def send_acks_once() -> None:
    """Do not send acks again whose replies were lost."""
    on_no_reply_to_settle = PendingLeases._on_no_reply_to_settle

    def forget(
        self: PendingLeases, acks: Sequence[Lease], notes: Sequence[Lease], was_sent: bool
    ) -> None:
        on_no_reply_to_settle(self, [], notes, was_sent)

    PendingLeases._on_no_reply_to_settle = forget


def examine_no_missing_jobs() -> None:
    """Treat a requeue that finds no claim as one that was carried out."""
    LostJobs.add = lambda self, *_: None


def record_no_data_loss() -> None:
    """Do not record on the server that it had forgotten this process."""
    LostJobs.record_data_loss = lambda self: None


def forget_starts() -> None:
    """Treat a job that was started as one that waits."""
    begin = InFlight.start

    def begin_and_forget(self: InFlight, lease: Lease, *, record: bool = True) -> float:
        deadline = begin(self, lease, record=record)
        self.leases.apply(lease, Event.WITHDRAW)
        return deadline

    InFlight.start = begin_and_forget


def count_no_stops() -> None:
    """Requeue a run that a stop cut short like a job that only waited."""
    InFlight.cut_short = InFlight.withdraw_start


def claim_no_suspects_alongside() -> None:
    """Claim a job on probation for a solo run only."""
    SuspectClaims.claim_alongside = lambda *_: None


def release_due(owner: Owner) -> None:
    """Move parked jobs that are due to their queues."""
    owner.leases.release_due()
