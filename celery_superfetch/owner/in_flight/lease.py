"""A lease: one claimed job of this process with its one local state, from its claim until it left.

``InFlight`` makes a lease for each job that it claims, and applies events to it. The delivery of a
job, and the gate that starts it in a worker's pool, hold its lease and read its state. A lease is
in memory alone: if the process dies, the private list on the server has its job, and the waiting
note there says whether the job had begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ...model.job import Claimed, Counters, Job


class State(Enum):
    """The local state of a claimed job, until it has left this process."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and called ten times a job

    FETCHED = "claimed; its consumer does not have it yet"
    DELIVERED = "with a consumer that does not report when it begins (plain kombu, a batch)"
    RESERVED = "with a request that waits to be started"
    RUNNING = "with the pool: it runs, or is about to"
    DETACHED = "it runs, and the channel that delivered it is closed"
    RETURNING = "its requeue is pending"
    PARKING = "its move to the parked set is pending"
    SETTLED = "its ack is pending"
    GONE = "it has left this process"


class Event(Enum):
    """An event in the life of a claimed job."""

    __hash__ = object.__hash__

    DELIVER = "its consumer has it, and does not report when it begins"
    RESERVE = "a request waits to start it"
    START = "the pool gets it"
    TAKE_BACK = "the pool did not begin with it, or its run is ended because the process stops"
    CLOSE = "the channel that delivered it is closed"
    REQUEUE = "it is to go back to its queue; its run, if it had one, has ended"
    PARK = "it is to wait on the server: it is due later, or cannot run now; its run has ended"
    REFUSE = "the server refused to park it"
    ACK = "it is done"
    LEAVE = "the server confirmed that it left, or has it no more"


HELD = (State.FETCHED, State.DELIVERED, State.RESERVED)  # no start was reported
RUNS = (State.RUNNING, State.DETACHED)

#: Event -> state before -> state after. An event changes no other state.
TRANSITIONS: Mapping[Event, Mapping[State, State]] = {
    Event.DELIVER: {State.FETCHED: State.DELIVERED},
    Event.RESERVE: dict.fromkeys((State.FETCHED, State.DELIVERED), State.RESERVED),
    Event.START: dict.fromkeys((State.DELIVERED, State.RESERVED), State.RUNNING),
    Event.TAKE_BACK: {State.RUNNING: State.RESERVED, State.DETACHED: State.RETURNING},
    Event.CLOSE: {**dict.fromkeys(HELD, State.RETURNING), State.RUNNING: State.DETACHED},
    Event.REQUEUE: dict.fromkeys((*HELD, *RUNS), State.RETURNING),
    Event.PARK: dict.fromkeys((*HELD, *RUNS), State.PARKING),
    Event.REFUSE: {State.PARKING: State.RETURNING},
    Event.ACK: dict.fromkeys((*HELD, *RUNS, State.RETURNING), State.SETTLED),
    Event.LEAVE: dict.fromkeys((state for state in State if state is not State.GONE), State.GONE),
}


@dataclass(slots=True, eq=False)
class Lease:
    """One claimed job of this process, and what this process knows of it beside its bytes."""

    job: Job
    counters: Counters | None = None  # None: the server remembers no earlier delivery
    state: State = State.FETCHED
    #: Whether the server has a waiting note of the job, which says that it has not begun. False:
    #: there is none, so the job counts as running. None: a command that changes this has no reply
    #: yet, or its reply was lost.
    has_waiting_note: bool | None = True
    is_suspect: bool = False  # it was on probation
    has_run: bool = False  # a run in this process has ended, or is being ended, without an ack
    #: The run is ended because this process is stopping: the job's requeue counts as a stop.
    is_cut_short: bool = False
    #: Ownership was lost, and that was announced. An ack that finds no claim announces it no more.
    is_taken_away: bool = False
    #: Its ack, or its requeue or park, was sent before and had no reply: it may have been carried
    #: out.
    ack_was_sent: bool = False
    move_was_sent: bool = False
    returns_to: str = "front"  # of its queue; or "back"
    returns_after: float = 0.0  # monotonic s; no requeue is sent before, after a refused one
    due_ms: int = 0  # of a job that is to be parked until then, by the server's clock
    delay_ms: int = 0  # of a job that is to be parked for so long, since it cannot run now

    def apply(self, event: Event) -> bool:
        """Change the state; return False where the event does not apply. For ``Leases.apply``
        alone, which keeps the counts: a lease of a process gets its events by that."""
        after = TRANSITIONS[event].get(self.state)
        if after is None:
            return False
        self.state = after
        return True

    @property
    def claimed(self) -> Claimed:
        """The job and its history, as the store returned them."""
        return Claimed(self.job, self.counters)

    @property
    def is_gone(self) -> bool:
        """Return whether the job has left this process."""
        return self.state is State.GONE

    @property
    def may_start(self) -> bool:
        """True if no start of the job was reported, and it is not leaving: it may be started now,
        or, if it is ``FETCHED``, once its consumer has it. An event ``TAKE_BACK`` makes a running
        job one that may be started again."""
        return self.state in HELD

    @property
    def runs(self) -> bool:
        """Return whether the pool has the job, also after its channel was closed."""
        return self.state in RUNS


class Leases:
    """All leases of one process, the oldest claim first. Not thread-safe: ``InFlight`` has a lock.
    Each lease is added when it is made, and removed when it is ``GONE``."""

    def __init__(self) -> None:
        self._by_claim: dict[tuple[str, str], Lease] = {}  # (owner, claim id) -> lease
        self.counts = dict.fromkeys(State, 0)  # of the leases in each state
        #: The suspect in its solo run: no other job may start in this process (``SuspectClaims``).
        self.solo: Lease | None = None

    def __len__(self) -> int:
        return len(self._by_claim)

    def __iter__(self) -> Iterator[Lease]:
        return iter(list(self._by_claim.values()))

    def __reversed__(self) -> Iterator[Lease]:
        return reversed(list(self._by_claim.values()))

    def of(self, job: Job) -> Lease | None:
        """Return the lease of a job; None if it has left, or this process never claimed it."""
        return self._by_claim.get((job.owner, job.claim_id))

    def add(self, lease: Lease) -> None:
        """Add the lease of a job that was claimed."""
        self._by_claim[lease.job.owner, lease.job.claim_id] = lease
        self.counts[lease.state] += 1

    def apply(self, lease: Lease, event: Event) -> State | None:
        """Change the state of a lease; return the new one, or None if the event changes nothing."""
        before = lease.state
        if not lease.apply(event):
            return None
        after = lease.state
        self.counts[before] -= 1
        if after is State.GONE:
            self._remove(lease)
        else:
            self.counts[after] += 1
        if event in (Event.REQUEUE, Event.PARK) and before in RUNS:
            lease.has_run = True
        return after

    def _remove(self, lease: Lease) -> None:
        del self._by_claim[lease.job.owner, lease.job.claim_id]
        if lease is self.solo:
            self.solo = None
