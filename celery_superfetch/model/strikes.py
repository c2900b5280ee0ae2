"""A recovery and the decision on it: pure values, and one pure function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from .config import Config
from .job import Counters, Envelope, Job, digest


class Decision(Enum):
    """What becomes of a job whose run was cut short."""

    RECOVER = "recover"  #: It goes back to its queue, or on probation.
    KILL = "kill"  #: It goes to the dead set.


class Blame(Enum):
    """Whether a recovery counts against its job."""

    NONE = ""  #: It did not run, or its worker had been told to stop, or it hung.
    SUSPECT = "suspect"  #: It ran when its owner died, and so did others.
    EXACT = "exact"  #: It ran with nothing beside it, or its own pool process was lost.


class Limits(NamedTuple):
    strikes: Callable[[str | None], int | None]  # task -> its strike limit; None: never killed
    recoveries: int  # recoveries, strikes or not, after which a job goes on probation

    @classmethod
    def of(cls, config: Config) -> Limits:
        """The same for every task."""
        return cls(lambda _: config.strike_limit, config.recovery_limit)


class Running(NamedTuple):
    """What a process was running, as it had recorded by its end."""

    claim_ids: Collection[str] = ()
    excused: bool = False  # the process had been told to stop, or its event loop hung
    #: How many ran when it was taken for dead, where that was noted; some may be settled since.
    at_death: int = 0


@dataclass(frozen=True)
class Recovery:
    """One job that is about to be recovered; the counters include this time."""

    job: Job  #: its owner, queue list and payload
    reason: str  #: why its owner lost it
    app_name: str  #: name of the owner's Celery app; empty outside Celery
    blame: Blame  #: whether this recovery is a strike
    strikes: int  #: so far, with this one
    recoveries: int  #: so far, with this one
    node: str = ""  #: Celery's name of the owner; empty outside Celery, and if it is not known
    history: tuple[Mapping[str, Any], ...] = ()  #: earlier ones, as in `DeadJob`
    limit: int | None = None  #: strikes at which it is killed; None if never
    #: It goes on probation if it is recovered: 1, and 1 more for each death in company since then;
    #: 0: it does not.
    probation: int = 0
    task: str | None = None  #: name of its task; None if the payload does not say
    task_id: str | None = None  #: Celery's id of the task; None if the payload does not say
    parsed: bool = True  #: False if it is no message, or none that can be received
    counted: bool = False  #: it has been recovered already, and was spared

    @classmethod
    def of(
        cls,
        job: Job,
        envelope: Envelope,
        counters: Counters,
        *,
        blame: Blame,
        limits: Limits,
        **details: str,
    ) -> Recovery:
        """That of ``job`` after ``counters``; ``details``: its reason, app_name and node."""
        limit, carried = limits.strikes(envelope.task), envelope.carried
        strikes = _strikes(counters.total(carried.strikes), blame, limit)
        recoveries = counters.recoveries + 1
        suspected = limit is not None and (
            counters.probation
            or (blame is not Blame.NONE and strikes >= limit - 1)
            or recoveries >= limits.recoveries
        )
        return cls(
            **details,  # type: ignore[arg-type]
            job=job,
            blame=blame,
            strikes=strikes,
            recoveries=recoveries,
            history=(*carried.history, *counters.history),
            limit=limit,
            probation=max(1, counters.probation + (blame is Blame.SUSPECT)) if suspected else 0,
            task=envelope.task,
            task_id=envelope.task_id,
            parsed=envelope.message is not None,
        )

    def latest(self) -> Recovery:
        """The recovery that was counted last, as far as it is known; there must be one."""
        last = self.history[-1]
        exact = last.get("strike") == Blame.EXACT.value
        return replace(
            self,
            reason=str(last.get("reason")),
            blame=Blame.EXACT if exact else Blame.NONE,
            recoveries=self.recoveries - 1,
            counted=True,
        )

    @property
    def digest(self) -> str:
        return digest(self.job.payload)

    @property
    def event(self) -> dict[str, Any]:
        """Its line of the history; nobody has noted a time yet."""
        return {"owner": self.job.owner, "reason": self.reason, "strike": self.blame.value}

    @property
    def outlook(self) -> str:
        """What its strikes have come to, and what the next one does."""
        if self.limit is None:
            return f"strike {self.strikes}; its task has no limit, so nothing follows"
        ahead = f"it runs again, and is killed at strike {self.limit}"
        if self.probation:
            ahead = (
                "on probation, it runs alone at first; a strike that it surely caused is its last"
            )
        return f"strike {self.strikes} of {self.limit}; {ahead}"

    @property
    def title(self) -> str:
        return self.job.title


def toll(strikes: int, recoveries: int) -> str:
    """``1 strike and 2 recoveries``."""
    back = "recovery" if recoveries == 1 else "recoveries"
    return f"{strikes} strike{'' if strikes == 1 else 's'} and {recoveries} {back}"


def _strikes(before: int, blame: Blame, limit: int | None) -> int:
    """Strikes after a recovery. A suspect one is never the last: it may be a neighbour's fault."""
    if blame is Blame.NONE:
        return before
    if blame is Blame.SUSPECT and limit is not None:
        return max(before, min(before + 1, limit - 1))
    return before + 1


def blame(claim_id: str, running: Running, counters: Counters, limits: Limits) -> Blame:
    """How the death of an owner counts against a job it had in flight."""
    # Neither a deploy nor a result backend that hangs is its fault. But such a loop must end, too:
    # past the limit of recoveries, what is on probation has to answer for that as for any other.
    looping = counters.probation and counters.recoveries >= limits.recoveries
    if claim_id not in running.claim_ids or (running.excused and not looping):
        return Blame.NONE
    return Blame.EXACT if max(running.at_death, len(running.claim_ids)) == 1 else Blame.SUSPECT


def decide(recovery: Recovery) -> Decision:
    """KILL for a strike that is certainly the job's own and the last it has, else RECOVER."""
    last = recovery.limit is not None and recovery.strikes >= recovery.limit
    return Decision.KILL if last and recovery.blame is Blame.EXACT else Decision.RECOVER
