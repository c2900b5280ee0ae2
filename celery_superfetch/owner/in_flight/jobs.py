"""The jobs in flight of this process and their states. They exist in memory alone: if the process
dies, its private list on the server has the jobs, and says which of them ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from ...model.job import Job

#: Jobs, and bytes but for the last job, that one script moves at most: while it runs, the server
#: answers no other client.
BATCH, ROOM = 100, 1024 * 1024


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
    TAKE_BACK = "the pool did not begin with it, or its run was ended because the process stops"
    CLOSE = "the channel that delivered it is closed"
    REQUEUE = "it is to go back to its queue; a run has ended"
    PARK = "it is due later, and is to wait on the server"
    REFUSE = "the server refused to park it"
    ACK = "it is done"
    LEAVE = "the server confirmed that it left, or has it no more"


HELD = (State.FETCHED, State.DELIVERED, State.RESERVED)  # of a job that has not started
RUNS = (State.RUNNING, State.DETACHED)

#: Event -> state before -> state after. An event changes no other state.
TRANSITIONS: Mapping[Event, Mapping[State, State]] = {
    Event.DELIVER: {State.FETCHED: State.DELIVERED},
    Event.RESERVE: dict.fromkeys((State.FETCHED, State.DELIVERED), State.RESERVED),
    Event.START: dict.fromkeys((State.DELIVERED, State.RESERVED), State.RUNNING),
    Event.TAKE_BACK: {State.RUNNING: State.RESERVED, State.DETACHED: State.RETURNING},
    Event.CLOSE: {**dict.fromkeys(HELD, State.RETURNING), State.RUNNING: State.DETACHED},
    Event.REQUEUE: dict.fromkeys((*HELD, *RUNS), State.RETURNING),
    Event.PARK: dict.fromkeys(HELD, State.PARKING),
    Event.REFUSE: {State.PARKING: State.RETURNING},
    Event.ACK: dict.fromkeys((*HELD, *RUNS, State.RETURNING), State.SETTLED),
    Event.LEAVE: dict.fromkeys((state for state in State if state is not State.GONE), State.GONE),
}


class Jobs(dict[Job, State]):
    """Each job's state, the oldest claim first. Not thread-safe: ``InFlight`` sees to that."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[State] = Counter()
        #: Jobs that their claim recorded as running, and that no pool has got yet.
        self.recorded: set[Job] = set()
        #: Jobs whose run in this process ended without an ack.
        self.has_run: set[Job] = set()
        #: Jobs whose run was cut short because this process is stopping: their requeue is a stop.
        self.cut_short: set[Job] = set()
        #: Jobs on probation that are in flight in this process, alone or alongside others.
        self.suspects: set[Job] = set()
        #: The job on probation that has this process for itself.
        self.alone: Job | None = None
        #: Until then (monotonic s) no other job starts alongside it; and no other suspect alongside
        #: one that runs alongside other jobs.
        self.alone_until = 0.0

    def runs(self, job: Job) -> bool:
        return self.get(job) in RUNS

    @property
    def unsettled(self) -> bool:
        return len(self) > self.counts[State.SETTLED]

    def add(self, job: Job) -> None:
        self[job] = State.FETCHED
        self.counts[State.FETCHED] += 1

    def apply(self, job: Job, event: Event) -> State | None:
        """Change the state of a job; return the new one, or None if the event changes nothing."""
        if (before := self.get(job)) is None:
            return None
        after = TRANSITIONS[event].get(before)
        if after is None:
            return None
        if event is Event.LEAVE:
            self._drop(job, before)
            return after
        if event is Event.REQUEUE and before in RUNS:
            self.has_run.add(job)
        self.counts[before] -= 1
        self.counts[after] += 1
        self[job] = after
        return after

    def _drop(self, job: Job, state: State) -> None:
        del self[job]
        self.counts[state] -= 1
        for jobs in (self.recorded, self.cut_short, self.suspects, self.has_run):
            jobs.discard(job)
        if job == self.alone:
            self.alone = None


def batches(jobs: Mapping[Job, str]) -> Iterator[tuple[str, list[Job]]]:
    """Group jobs by owner, queue list and where they go (the mapping's values), in batches that one
    script can move; yield (where, jobs)."""
    groups: dict[tuple[str, str, str], list[Job]] = {}
    for job, where in jobs.items():
        groups.setdefault((job.owner, job.queue_list, where), []).append(job)
    for (_, _, where), group in groups.items():
        some, size = list[Job](), 0
        for job in group:
            if len(some) == BATCH or size >= ROOM:
                yield where, some
                some, size = [], 0
            some.append(job)
            size += len(job.payload)
        yield where, some
