"""What this process holds: one record a job, which says in which state it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ...model.job import Job


class State(Enum):
    """Who has a job that is claimed and has not left this process."""

    CLAIMED = "we have it, or a consumer that may begin with it at any moment"
    WAITING = "a consumer has it that hands jobs over before it begins: it may be taken back"
    GATHERED = "a consumer has it that makes one run of many, and does not say when it begins"
    STARTED = "a pool has it: it runs, or is about to"
    OUTLIVED = "it runs on although the channel that delivered it is closed"
    RETURNING = "it is on its way back to its queue"
    SETTLED = "its ack is on its way"


class Move(Enum):
    """What can happen to it."""

    WAIT = "its consumer will hand it over before it begins"
    GATHER = "its consumer gathers jobs"
    START = "it is handed over to those who run it"
    END = "they are done with it, or never had it"
    REQUEUE = "it is given back; what runs goes on"
    ACK = "it is acked"


_IDLE = (State.CLAIMED, State.WAITING, State.GATHERED)

#: From which state a job comes into which. What is not in here changes nothing; out of each state
#: a job goes when the server says that it is gone.
MOVES: Mapping[Move, Mapping[State, State]] = {
    Move.WAIT: {State.CLAIMED: State.WAITING},
    Move.GATHER: {State.CLAIMED: State.GATHERED},
    Move.START: dict.fromkeys(_IDLE, State.STARTED),
    Move.END: dict.fromkeys((*_IDLE, State.STARTED, State.OUTLIVED), State.CLAIMED),
    Move.REQUEUE: {
        **dict.fromkeys(_IDLE, State.RETURNING),
        State.STARTED: State.OUTLIVED,
        State.OUTLIVED: State.OUTLIVED,
    },
    Move.ACK: dict.fromkeys(State, State.SETTLED),
}


@dataclass(slots=True)
class Record:
    """What is known of one job beside its claim."""

    state: State = State.CLAIMED
    #: Its claim has recorded it as running, and no pool has got it yet.
    recorded: bool = False


class Jobs:
    """The records. Not thread-safe for those who change them: ``InFlight`` sees to that."""

    def __init__(self) -> None:
        self._records: dict[Job, Record] = {}
        self._counts: Counter[State] = Counter()
        self._alone: Job | None = None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._records)

    def __contains__(self, job: object) -> bool:
        return job in self._records

    @property
    def alone(self) -> Job | None:
        """The job on probation that has this process for itself."""
        return self._alone if self._alone in self._records else None

    def state(self, job: Job) -> State | None:
        """Its state; None when it is not held (any more)."""
        record = self._records.get(job)
        return record.state if record is not None else None

    def runs(self, job: Job) -> bool:
        """Whether it runs, or is about to."""
        return self.state(job) in (State.STARTED, State.OUTLIVED)

    @property
    def outlived(self) -> int:
        """How many run on although their channel is closed."""
        return self._counts[State.OUTLIVED]

    @property
    def unsettled(self) -> bool:
        """Whether some are held and not acked."""
        return len(self._records) > self._counts[State.SETTLED]

    @property
    def queue_lists(self) -> set[str]:
        """Where they come from."""
        return {job.queue_list for job in list(self._records)}

    def those(self, chosen: Callable[[Job, State], bool]) -> list[Job]:
        """Those that are chosen, the oldest claim first."""
        return [job for job, record in self._records.items() if chosen(job, record.state)]

    def add(self, job: Job, alone: bool = False) -> None:
        """It was claimed.

        Arguments:
            alone: it was on probation, and has this process for itself.
        """
        self.drop(job)
        if alone:
            self._alone = job
        self._records[job] = Record()
        self._counts[State.CLAIMED] += 1

    def move(self, job: Job, move: Move) -> State | None:
        """Note what happened; its new state, None when nothing changes by that."""
        record = self._records.get(job)
        after = MOVES[move].get(record.state) if record is not None else None
        if record is None or after is None:
            return None
        self._counts[record.state] -= 1
        self._counts[after] += 1
        record.state = after
        return after

    def drop(self, job: Job) -> None:
        """It has left this process."""
        record = self._records.pop(job, None)
        if record is not None:
            self._counts[record.state] -= 1

    # -- the record of what runs

    def is_recorded(self, job: Job) -> bool:
        """Whether its claim has recorded it as running, and no pool has got it yet."""
        record = self._records.get(job)
        return record is not None and record.recorded

    def record(self, job: Job, recorded: bool) -> None:
        """Note that its claim has recorded it, or that this is over."""
        record = self._records.get(job)
        if record is not None:
            record.recorded = recorded
