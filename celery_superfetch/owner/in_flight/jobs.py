"""What this process holds, and in which state each job is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from ...model.job import Job

#: Jobs, and bytes but for the last job, that one script moves at most: while it runs, the server
#: answers no other client.
BATCH, ROOM = 100, 1024 * 1024


class State(Enum):
    """Who has a job that is claimed and has not left this process."""

    __hash__ = object.__hash__  # Enum's own is Python's, and is asked ten times a job

    CLAIMED = "we have it, or a consumer that may begin with it at any moment"
    WAITING = "a consumer has it that hands jobs over before it begins: it may be taken back"
    GATHERED = "a consumer has it that makes one run of many, and does not say when it begins"
    STARTED = "a pool has it: it runs, or is about to"
    OUTLIVED = "it runs on although the channel that delivered it is closed"
    RETURNING = "it is on its way back to its queue"
    SETTLED = "its ack is on its way"


class Move(Enum):
    """What can happen to such a job."""

    __hash__ = object.__hash__

    WAIT = "its consumer will hand it over before it begins"
    GATHER = "its consumer gathers jobs"
    START = "it is handed over to those who run it"
    END = "they are done with it, or never had it"
    REQUEUE = "it is given back; what runs goes on"
    ACK = "it is acked"


IDLE = (State.CLAIMED, State.WAITING, State.GATHERED)  # those of a job that waits to be started

#: What is not in here changes nothing.
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
        #: Those that their claim has recorded as running, and that no pool has got yet.
        self.recorded: set[Job] = set()
        #: Those whose run was cut short because this process is stopping: their requeue is a stop.
        self.cut_short: set[Job] = set()
        #: Jobs on probation that are in flight here, alone or alongside others.
        self.suspects: set[Job] = set()
        #: The job on probation that has this process for itself; and until when (monotonic s) no
        #: other job starts beside it, or no other suspect beside one that runs alongside others.
        self.alone: Job | None = None
        self.alone_until = 0.0

    def runs(self, job: Job) -> bool:
        return self.get(job) in (State.STARTED, State.OUTLIVED)

    @property
    def unsettled(self) -> bool:
        return len(self) > self.counts[State.SETTLED]

    def add(self, job: Job) -> None:
        self[job] = State.CLAIMED
        self.counts[State.CLAIMED] += 1

    def move(self, job: Job, move: Move) -> State | None:
        """Note what happened; the new state, None when nothing changes by that."""
        if (before := self.get(job)) is None or (after := MOVES[move].get(before)) is None:
            return None
        self.counts[before] -= 1
        self.counts[after] += 1
        self[job] = after
        return after

    def drop(self, job: Job) -> None:
        if (state := self.pop(job, None)) is not None:
            self.counts[state] -= 1
        for jobs in (self.recorded, self.cut_short, self.suspects):
            jobs.discard(job)
        if job == self.alone:
            self.alone = None


def batches(jobs: Mapping[Job, str]) -> Iterator[tuple[str, list[Job]]]:
    """Jobs of one private list that go the same way, not too many at once."""
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
