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
    """The local lifecycle of a claimed job, until it has left this process."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and called ten times a job

    CLAIMED = "it is fetched, or with a consumer that may start it at any moment"
    WAITING = "with a consumer that asks before it starts a job: it may be requeued"
    GATHERED = "with a consumer that makes one run of many jobs, and does not say when it starts"
    STARTED = "a pool has it: it runs, or is about to"
    OUTLIVED = "it continues to run, but the channel that delivered it is closed"
    RETURNING = "its requeue is being sent"
    SETTLED = "its ack is being sent"


class Move(Enum):
    """An event in that lifecycle."""

    __hash__ = object.__hash__

    WAIT = "its consumer will ask before it starts the job"
    GATHER = "its consumer gathers jobs"
    START = "the pool gets it"
    END = "its run has ended, or the pool did not get it"
    REQUEUE = "it is requeued; a running job continues"
    ACK = "it is acked"


IDLE = (State.CLAIMED, State.WAITING, State.GATHERED)  # of a job that has not started
RUNNING = (State.STARTED, State.OUTLIVED)

#: Event -> state before -> state after. An event changes no other state.
MOVES: Mapping[Move, Mapping[State, State]] = {
    Move.WAIT: {State.CLAIMED: State.WAITING},
    Move.GATHER: {State.CLAIMED: State.GATHERED},
    Move.START: dict.fromkeys(IDLE, State.STARTED),
    Move.END: dict.fromkeys((*IDLE, State.STARTED, State.OUTLIVED), State.CLAIMED),
    Move.REQUEUE: {
        **dict.fromkeys(IDLE, State.RETURNING),
        State.STARTED: State.OUTLIVED,
        State.OUTLIVED: State.OUTLIVED,
    },
    Move.ACK: dict.fromkeys(State, State.SETTLED),
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
        return self.get(job) in RUNNING

    @property
    def unsettled(self) -> bool:
        return len(self) > self.counts[State.SETTLED]

    def add(self, job: Job) -> None:
        self[job] = State.CLAIMED
        self.counts[State.CLAIMED] += 1

    def move(self, job: Job, move: Move) -> State | None:
        """Apply an event to a job; return the new state, None if that did not change."""
        if (before := self.get(job)) is None or (after := MOVES[move].get(before)) is None:
            return None
        if move is Move.END and before in RUNNING:
            self.has_run.add(job)
        elif move is Move.WAIT:
            self.has_run.discard(job)
        self.counts[before] -= 1
        self.counts[after] += 1
        self[job] = after
        return after

    def drop(self, job: Job) -> None:
        if (state := self.pop(job, None)) is not None:
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
