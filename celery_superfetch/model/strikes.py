"""A recovery and the decision on it: pure values, and one pure function."""

from __future__ import annotations

import json
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

    NONE = ""  #: It did not run, or its worker hung, or could not begin it.
    STOP = "stop"  #: It ran, and its worker was stopping. This is no strike.
    SUSPECT = "suspect"  #: It ran when its owner died, and so did others.
    EXACT = "exact"  #: It ran with nothing beside it, or its own pool process was lost.

    @property
    def is_strike(self) -> bool:
        return self in (Blame.SUSPECT, Blame.EXACT)


#: Stops from which on a job is named in the log, by `status` and by `doctor`: ten deploys within
#: the life of one job are rare.
STOPS_NAMED = 10

#: Stops after which a job returns to the front of its queue; after more it goes to the back, so
#: that a job that stops its workers starves no other.
STOPS_TO_FRONT = 2

#: Deaths of its owner alongside other jobs that end a job, if its strike limit is not higher. A
#: suspect that quiesces have not helped never runs alone, so no strike of its would be its last.
DEATHS_ALONGSIDE = 20


def _no_limit(_: str | None) -> None:
    return None


class Limits(NamedTuple):
    strikes: Callable[[str | None], int | None]  # task -> its strike limit; None: never killed
    recoveries: int  # recoveries other than stops after which a job goes on probation
    stops: Callable[[str | None], int | None] = _no_limit  # task -> its stop limit; None: never

    @classmethod
    def of(cls, config: Config) -> Limits:
        """The same for every task."""
        return cls(
            lambda _: config.strike_limit, config.recovery_limit, lambda _: config.stop_limit
        )


class Running(NamedTuple):
    """What a process was running, as it had recorded by its end."""

    claim_ids: Collection[str] = ()
    excused: bool = False  # its event loop hung, or it could not begin the job
    #: How many ran when it was taken for dead, where that was noted; some may be settled since.
    at_death: int = 0
    stopping: bool = False  # the process had been told to stop
    own: bool = False  # the owner lives: what was lost ran this job alone


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
    stops: int = 0  #: runs that were cut short because their worker was stopping, with this one
    stop_limit: int | None = None  #: stops at which it is killed; None if never
    deaths_alongside: int = 0  #: deaths of its owner while it ran alongside others, with this one
    own: bool = False  #: its own process was lost, and its owner lives

    @classmethod
    def of(
        cls,
        job: Job,
        envelope: Envelope,
        counters: Counters,
        *,
        blame: Blame,
        limits: Limits,
        own: bool = False,
        **details: str,
    ) -> Recovery:
        """That of ``job`` after ``counters``; ``own``: its own process was lost, and its owner
        lives; ``details``: its reason, app_name and node."""
        limit, carried = limits.strikes(envelope.task), envelope.carried
        strikes = _strikes(counters.total(carried.strikes), blame, limit)
        recoveries, stops = counters.recoveries + 1, counters.stops + (blame is Blame.STOP)
        # A job that lost only its own processes runs like any other: its next loss is exact, too.
        unsure = counters.deaths or not own
        suspected = limit is not None and (
            counters.probation
            or (blame.is_strike and unsure and strikes >= limit - 1)
            or recoveries - stops >= limits.recoveries
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
            stops=stops,
            stop_limit=limits.stops(envelope.task),
            deaths_alongside=counters.alongside + (blame is Blame.SUSPECT),
            own=own,
        )

    def latest(self) -> Recovery:
        """The recovery that was counted last, as far as it is known; there must be one."""
        last = self.history[-1]
        blamed = Blame.STOP if last.get("stop") else Blame.NONE
        return replace(
            self,
            reason=str(last.get("reason")),
            blame=Blame.EXACT if last.get("strike") == Blame.EXACT.value else blamed,
            recoveries=self.recoveries - 1,
            counted=True,
        )

    @property
    def digest(self) -> str:
        return digest(self.job.payload)

    @property
    def event(self) -> dict[str, Any]:
        """Its line of the history; nobody has noted a time yet."""
        strike = self.blame.value if self.blame.is_strike else ""
        event: dict[str, Any] = {"owner": self.job.owner, "reason": self.reason, "strike": strike}
        return {**event, "stop": True} if self.blame is Blame.STOP else event

    @property
    def record(self) -> str:
        """Its line in the list of jobs that stops cut short again and again."""
        return stop_record(self.job, self.task, self.task_id)

    @property
    def stopped_too_often(self) -> bool:
        return self.stop_limit is not None and self.stops >= self.stop_limit

    @property
    def met_too_many_deaths(self) -> bool:
        """Whether too many owners died while it ran alongside other jobs."""
        most = self.limit and max(self.limit, DEATHS_ALONGSIDE)
        return most is not None and self.deaths_alongside >= most

    @property
    def why_dead(self) -> str:
        """Why it is killed, if it is."""
        if self.blame is Blame.STOP and self.stopped_too_often:
            return (
                f"{self.stops} of its runs were cut short because their worker was stopping "
                f"(stop_limit {self.stop_limit}; last: {self.reason})"
            )
        if self.blame is Blame.SUSPECT and self.met_too_many_deaths:
            return (
                f"{self.deaths_alongside} workers died while it ran alongside other jobs "
                f"(last: {self.reason})"
            )
        return self.reason

    @property
    def outlook(self) -> str:
        """What its strikes, or stops, have come to, and what the next one does."""
        if self.blame is Blame.STOP:
            return stops_outlook(self.stops, self.stop_limit)
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


def toll(strikes: int, recoveries: int, stops: int = 0) -> str:
    """``1 strike and 2 recoveries``, and ``3 stops`` if there were any."""
    back = "recovery" if recoveries == 1 else "recoveries"
    struck = f"{strikes} strike{'' if strikes == 1 else 's'}"
    if not stops:
        return f"{struck} and {recoveries} {back}"
    return f"{struck}, {recoveries} {back} and {stops} stop{'' if stops == 1 else 's'}"


def stops_outlook(stops: int, limit: int | None) -> str:
    """What so many stops of a job have come to, and what the next one does."""
    ahead = "its task has no stop_limit" if limit is None else f"it is killed at stop {limit}"
    runs = "1 run was" if stops == 1 else f"{stops} runs were"
    return f"{runs} cut short because the worker was stopping; {ahead}"


def stop_record(job: Job, task: str | None, task_id: str | None) -> str:
    """The line of a job in the list of those that stops cut short again and again."""
    names = {"task": (task or "")[:200], "id": (task_id or "")[:200]}
    return json.dumps({"digest": digest(job.payload), "queue_list": job.queue_list, **names})


def _strikes(before: int, blame: Blame, limit: int | None) -> int:
    """Strikes after a recovery. A suspect one is never the last: it may be a neighbour's fault."""
    if not blame.is_strike:
        return before
    if blame is Blame.SUSPECT and limit is not None:
        return max(before, min(before + 1, limit - 1))
    return before + 1


def blame(claim_id: str, running: Running, counters: Counters, limits: Limits) -> Blame:
    """How the death of an owner counts against a job it had in flight."""
    if claim_id not in running.claim_ids:
        return Blame.NONE
    if running.stopping:  # by a deploy, or by the job itself: the signal does not say
        return Blame.STOP
    # A result backend that hangs is not its fault. But such a loop must end, too: past the limit
    # of recoveries, what is on probation has to answer for that as for any other.
    lost = counters.recoveries - counters.stops
    looping = counters.probation and lost >= limits.recoveries
    if running.excused and not looping:
        return Blame.NONE
    return Blame.EXACT if max(running.at_death, len(running.claim_ids)) == 1 else Blame.SUSPECT


def decide(recovery: Recovery) -> Decision:
    """KILL for a strike that is certainly the job's own and the last it has, for its last stop,
    and for one death too many alongside other jobs; else RECOVER."""
    last = recovery.limit is not None and recovery.strikes >= recovery.limit
    own = last and recovery.blame is Blame.EXACT
    too_many = recovery.blame is Blame.SUSPECT and recovery.met_too_many_deaths
    over = own or recovery.stopped_too_often or too_many
    return Decision.KILL if over else Decision.RECOVER
