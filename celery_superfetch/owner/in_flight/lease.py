"""A lease: this process's record of one job, with the state of the job here, from its claim until
the job has left this process.

``InFlight`` makes a lease for each job that it claims, and applies events to it (through
``Leases.apply``). The delivery of a job, and the gate that starts it in a worker's pool, hold its
lease and read its state. A lease is in memory alone. If the process dies, the job is in the owner's
private list on the server, from which a reaper recovers it. The *waiting note* of the job there
says that the job has not begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ...model.job import Claimed, Counters, Job
from ...model.strikes import Recovery


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
    WITHDRAW = "the pool did not begin with it, or its run is ended because the process stops"
    CLOSE = "the channel that delivered it is closed"
    REQUEUE = "it is to be requeued; its run, if it had one, has ended"
    PARK = "it is to wait on the server: it is due later, or cannot run now; its run has ended"
    REFUSE = "the server refused to park it"
    ACK = "it is done"
    LEAVE = "the server confirmed that it left, or has it no more"


HELD = (State.FETCHED, State.DELIVERED, State.RESERVED)  # no start was reported
RUNS = (State.RUNNING, State.DETACHED)

#: Event -> state before -> state after. An event changes no other state.
#:
#: - RESERVE and START apply to a DELIVERED job, too: a task's own strategy (for batches, say) may
#:   hand it to the pool after all.
#: - WITHDRAW of a DETACHED job requeues it: its channel is closed, so it cannot start again.
#: - ACK applies to a RETURNING job, too: it is done, and does not run again if its requeue was not
#:   carried out yet.
TRANSITIONS: Mapping[Event, Mapping[State, State]] = {
    Event.DELIVER: {State.FETCHED: State.DELIVERED},
    Event.RESERVE: dict.fromkeys((State.FETCHED, State.DELIVERED), State.RESERVED),
    Event.START: dict.fromkeys((State.DELIVERED, State.RESERVED), State.RUNNING),
    Event.WITHDRAW: {State.RUNNING: State.RESERVED, State.DETACHED: State.RETURNING},
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
    #: The backlog of the channel for which the job was claimed: no other channel delivers it.
    backlog: object = None
    state: State = State.FETCHED
    #: True: the server has a waiting note of the job, which has not begun. False: there is none, so
    #: the job counts as running. None: not known, since a command that changes it had no reply yet.
    has_waiting_note: bool | None = True
    #: The job was claimed from probation, since it may have killed an earlier process.
    is_suspect: bool = False
    has_run: bool = False  # a run in this process has ended, or is being ended, without an ack
    #: The run is ended because this process is stopping: the job's requeue counts as a stop.
    is_cut_short: bool = False
    #: It was announced that ownership was lost. An ack that finds no claim announces no second
    #: time.
    is_taken_away: bool = False
    ack_had_no_reply: bool = False  # an ack had no reply: the server may have carried it out
    #: a requeue or a park had no reply: it may have been carried out
    move_had_no_reply: bool = False
    #: The decision of a move to the dead set that had no reply: it may have been carried out.
    unanswered_kill: Recovery | None = None
    returns_to: str = "front"  # of its queue; or "back"
    #: After the server refused to move the job (a requeue, a park, a move to the dead set or to
    #: probation), its requeue is not sent before this time (monotonic s).
    returns_after: float = 0.0
    #: This process cannot run the job, and the server refused to move it elsewhere (the dead set,
    #: probation, the parked set): so it is requeued, and would soon be claimed again.
    is_refused: bool = False
    due_ms: int = 0  # of a job that is to be parked until then, by the server's clock
    delay_ms: int = 0  # of a job that is to be parked for so long, since it cannot run now

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
        """True if no start of the job was reported (or ``WITHDRAW`` undid it) and the job is not
        leaving: it may be started now, or, if it is ``FETCHED``, once its consumer has it."""
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
        #: The suspect in its solo run, in which no other job may start in this process. None: there
        #: is no solo run. ``SuspectClaims`` sets it, and ends it when its window is over;
        #: ``PendingLeases`` ends it when the suspect has to wait for its requeue.
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
        after = TRANSITIONS[event].get(before)
        if after is None:
            return None
        lease.state = after
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
