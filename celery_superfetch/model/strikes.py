"""Blame: how a lost run counts against its job, and whether the job runs again or is dead-lettered.

An *owner* is the part of a worker that claims jobs. A *recovery* puts a job whose run was lost back
on its queue. It is a *strike* if the run may have been lost by the job's own fault, and a *stop* if
the worker was stopping. A job that is near its limit goes on *probation*: it waits in a list of its
own for a *solo run*, in which the worker runs no other job, so that a further loss is certainly its
own fault.

Pure values and functions, without I/O. The reaper (for jobs of a dead owner) and ``Settlement``
(for a job whose pool process was lost while its owner lives) call ``blame``, then ``Recovery.of``.
Then the receivers of ``job_recovering`` decide. The package's own receiver (``app.guard``) calls
``decide``; the answer of any other receiver is preferred to its answer. Then one script
(``recover.lua`` or ``kill.lua``) both moves the job and counts. If the process dies before that,
nothing was counted, and the next recovery decides again; if it dies after it, all is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from .config import Config
from .job import Counters, Envelope, Job, claimed_at, digest


class Decision(Enum):
    """The decision on a job whose run was cut short."""

    RECOVER = "recover"  #: It goes back to its queue, or on probation.
    KILL = "kill"  #: It goes to the dead set.


class Blame(Enum):
    """The blame of a job for the loss of its run."""

    #: The job did not run; or its worker hung, or could not start it. If that happens again and
    #: again, it is blamed (``blame``).
    NONE = ""
    STOP = "stop"  #: It ran, and its worker was stopping. A stop is no strike.
    SUSPECT = "suspect"  #: It ran when its owner died, and other jobs ran as well.
    EXACT = "exact"  #: It alone ran when its owner died, or its own pool process was lost.

    @property
    def is_strike(self) -> bool:
        return self in (Blame.SUSPECT, Blame.EXACT)


#: Number of stops from which on the log, `status` and `doctor` name a job: ten deploys within the
#: life of one job are rare.
STOPS_NAMED = 10

#: Number of stops up to which a job returns to the front of its queue; with more it goes to the
#: back, so that a job that stops its workers starves no other.
STOPS_TO_FRONT = 2

#: A job is dead-lettered when so many owners have died while they ran it alongside other jobs (or
#: as many as its strike limit, if that is higher). A job on probation runs alongside other jobs if
#: these do not end in time for a solo run. Then each of its strikes is a suspect one, which is
#: never the last: without this limit it could kill workers for ever.
DEATHS_ALONGSIDE = 20


def _no_limit(_: str | None) -> None:
    return None


class Limits(NamedTuple):
    """The limits at which jobs of an app are dead-lettered, or go on probation."""

    strikes: Callable[[str | None], int | None]  # task -> its strike limit; None: never killed
    recoveries: int  # recoveries other than stops after which a job goes on probation
    stops: Callable[[str | None], int | None] = _no_limit  # task -> its stop limit; None: never

    @classmethod
    def of(cls, config: Config) -> Limits:
        """Return the limits of a configuration, the same for every task."""
        return cls(
            lambda _: config.strike_limit, config.recovery_limit, lambda _: config.stop_limit
        )


class Running(NamedTuple):
    """The jobs that an owner ran when it died, and how it ended; or the one job that a lost pool
    process ran, while its owner lives."""

    #: Claims of the jobs that ran: those with a start record, which the owner writes when it starts
    #: a job.
    claim_ids: Collection[str] = ()
    not_blamed: bool = False  # the job is not to blame: its event loop hung, or could not start it
    #: Number of jobs that ran when the owner was declared dead; 0: not known. Some of these may be
    #: acked since, and not in ``claim_ids``.
    at_death: int = 0
    stopping: bool = False  # the worker was stopping
    is_own_loss: bool = False  # the owner lives: a pool process was lost that ran this job alone


@dataclass(frozen=True)
class Recovery:
    """A job that is recovered or dead-lettered. Its counters include this recovery."""

    job: Job  #: with its ``owner``, ``queue_list`` and ``payload``
    reason: str  #: why its owner lost it
    #: Name of the owner's Celery app; empty if the app has no name, or for a kombu consumer that is
    #: no Celery worker.
    app_name: str
    #: Blame of the job for this recovery: its ``value`` is ``exact``, ``suspect``, ``stop``, or
    #: empty if the job is not to blame.
    blame: Blame
    strikes: int  #: number of strikes, with this recovery's
    recoveries: int  #: number of recoveries, with this one
    #: Celery's name of the owner; empty if it is not known, and for a kombu consumer.
    node: str = ""
    history: tuple[Mapping[str, Any], ...] = ()  #: earlier recoveries, as in `DeadJob`
    limit: int | None = None  #: strikes at which it is dead-lettered; None: never
    #: Number of its next solo run (a run in isolation). It is 1 when the job goes on probation, and
    #: grows by 1 with each suspect strike. 0: the job does not go on probation.
    solo_runs: int = 0
    task: str | None = None  #: name of its task; None if the payload does not say
    task_id: str | None = None  #: Celery's id of the task; None if the payload does not say
    parsed: bool = True  #: False if the payload is no message that kombu could deliver
    counted: bool = False  #: it was counted before, and the job was recovered then
    stops: int = 0  #: runs that were cut short because their worker was stopping, with this one
    stop_limit: int | None = None  #: stops at which it is dead-lettered; None: never
    #: Number of owners that died while it ran alongside other jobs, with this one.
    deaths_alongside: int = 0
    is_own_loss: bool = False  #: its own pool process was lost, and its owner lives
    first_claimed: int = 0  #: when it was claimed for the first time (s, by its owner's clock)
    #: It is dead-lettered before any run: its task is unknown, or it cannot be received or read.
    never_ran: bool = False

    @classmethod
    def of(
        cls,
        job: Job,
        envelope: Envelope,
        counters: Counters,
        *,
        blame: Blame,
        limits: Limits,
        is_own_loss: bool = False,
        **details: str,
    ) -> Recovery:
        """Return the recovery of a job that had these ``counters`` before it.

        Arguments:
            is_own_loss: its own pool process was lost, and its owner lives.
            details: reason, app_name and node.
        """
        limit = limits.strikes(envelope.task)
        strikes = _strikes(counters.strikes, blame, limit)
        recoveries, stops = counters.recoveries + 1, counters.stops + (blame is Blame.STOP)
        # A job that has lost nothing but its own pool processes needs no probation: its next loss
        # is certainly its own fault, too.
        unsure = counters.deaths or not is_own_loss
        suspected = limit is not None and (
            counters.solo_runs
            or (blame.is_strike and unsure and strikes >= limit - 1)
            or recoveries - stops >= limits.recoveries
        )
        return cls(
            **details,  # type: ignore[arg-type]
            job=job,
            blame=blame,
            strikes=strikes,
            recoveries=recoveries,
            history=counters.history,
            limit=limit,
            solo_runs=max(1, counters.solo_runs + (blame is Blame.SUSPECT)) if suspected else 0,
            task=envelope.task,
            task_id=envelope.task_id,
            parsed=envelope.message is not None,
            stops=stops,
            stop_limit=limits.stops(envelope.task),
            deaths_alongside=counters.alongside + (blame is Blame.SUSPECT),
            is_own_loss=is_own_loss,
            first_claimed=counters.first_claimed_at or claimed_at(job.claim_id) or 0,
        )

    def latest(self) -> Recovery:
        """Return the recovery that was counted last, from the last entry of the job's history,
        which must not be empty. A worker calls this if the reply of the script that counted it was
        lost, and for a claimed job that another worker has recovered. It calls it on a recovery
        without blame: that has counted one recovery too many, but no strike and no stop."""
        last = self.history[-1]
        strikes = (kind for kind in Blame if kind.is_strike and kind.value == last.get("strike"))
        blamed = Blame.STOP if last.get("stop") else next(strikes, Blame.NONE)
        return replace(
            self,
            reason=str(last.get("reason")),
            blame=blamed,
            recoveries=self.recoveries - 1,
            counted=True,
        )

    @property
    def digest(self) -> str:
        return digest(self.job.payload)

    @property
    def history_entry(self) -> dict[str, Any]:
        """This recovery's entry in the job's history, without its time, which the script adds."""
        strike = self.blame.value if self.blame.is_strike else ""
        event: dict[str, Any] = {"owner": self.job.owner, "reason": self.reason, "strike": strike}
        return {**event, "stop": True} if self.blame is Blame.STOP else event

    @property
    def record(self) -> str:
        """The job's entry in the list of jobs whose runs stops have cut short again and again."""
        return stop_record(self.job, self.task, self.task_id)

    @property
    def is_last_strike(self) -> bool:
        """True if this is an exact strike that reaches the strike limit."""
        is_at_limit = self.limit is not None and self.strikes >= self.limit
        return is_at_limit and self.blame is Blame.EXACT

    @property
    def stopped_too_often(self) -> bool:
        """True if its stops have reached the stop limit."""
        return self.stop_limit is not None and self.stops >= self.stop_limit

    @property
    def met_too_many_deaths(self) -> bool:
        """True if ``deaths_alongside`` has reached both 20 and the strike limit; False if there is
        no strike limit."""
        most = self.limit and max(self.limit, DEATHS_ALONGSIDE)
        return most is not None and self.deaths_alongside >= most

    @property
    def why_dead(self) -> str:
        """The reason to store with the job if it is dead-lettered."""
        # Its stops may have reached the limit before this recovery: a stopping worker counts a stop
        # when it requeues a job, and decides nothing. Then the reason of this recovery, or of an
        # older one, would not say why the job is dead-lettered.
        if self.stopped_too_often and not (self.is_last_strike or self.never_ran):
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
    def next_consequence(self) -> str:
        """The job's strikes (or stops) and the next consequence, as one sentence for the log."""
        if self.blame is Blame.STOP:
            return stops_consequence(self.stops, self.stop_limit)
        if self.limit is None:
            return f"strike {self.strikes}: it runs again, and its task has no strike limit"
        ahead = f"it runs again, and is moved to the dead set at strike {self.limit}"
        if self.solo_runs:
            ahead = (
                "on probation, it runs again in isolation, and is moved to the dead set if its "
                "process dies again"
            )
        return f"strike {self.strikes} of {self.limit}: {ahead}"

    @property
    def title(self) -> str:
        return self.job.title


def strike_summary(strikes: int, recoveries: int, stops: int = 0) -> str:
    """Return ``1 strike and 2 recoveries``, or ``1 strike, 2 recoveries and 3 stops``."""
    noun = "recovery" if recoveries == 1 else "recoveries"
    struck = f"{strikes} strike{'' if strikes == 1 else 's'}"
    if not stops:
        return f"{struck} and {recoveries} {noun}"
    return f"{struck}, {recoveries} {noun} and {stops} stop{'' if stops == 1 else 's'}"


def stops_consequence(stops: int, limit: int | None) -> str:
    """Return a job's stops and the next consequence, as one sentence for the log."""
    ahead = f"it is moved to the dead set at {limit} such runs (stop_limit)"
    if limit is None:
        ahead = "this never moves it to the dead set, since its task has no stop_limit"
    runs = "1 run was" if stops == 1 else f"{stops} runs were"
    return f"{runs} cut short because the worker was stopping: {ahead}"


def stop_record(job: Job, task: str | None, task_id: str | None) -> str:
    """Return the entry of a job in the list of jobs whose runs stops have cut short again and
    again, which `status` shows."""
    names = {"task": (task or "")[:200], "id": (task_id or "")[:200]}
    return json.dumps({"digest": digest(job.payload), "queue_list": job.queue_list, **names})


def _strikes(before: int, blame: Blame, limit: int | None) -> int:
    """Return the number of strikes after a recovery. A suspect strike never reaches the limit:
    another job that ran may have killed the owner."""
    if not blame.is_strike:
        return before
    if blame is Blame.SUSPECT and limit is not None:
        return max(before, min(before + 1, limit - 1))
    return before + 1


def blame(claim_id: str, running: Running, counters: Counters, limits: Limits) -> Blame:
    """Return how the death of an owner counts against a job that the owner had in flight."""
    if claim_id not in running.claim_ids:
        return Blame.NONE
    if running.stopping:  # by a deploy, or by the job itself: the signal does not say
        return Blame.STOP
    # If a worker hung, its result backend may be at fault. But a job in whose every run the worker
    # hangs must come to an end: past the limit of recoveries, a job on probation is blamed.
    lost = counters.recoveries - counters.stops
    looping = counters.solo_runs and lost >= limits.recoveries
    if running.not_blamed and not looping:
        return Blame.NONE
    return Blame.EXACT if max(running.at_death, len(running.claim_ids)) == 1 else Blame.SUSPECT


def decide(recovery: Recovery) -> Decision:
    """Return KILL for an exact strike that reaches the strike limit, for stops that reach the stop
    limit, and for a suspect strike after too many deaths alongside other jobs; else RECOVER."""
    too_many_deaths = recovery.blame is Blame.SUSPECT and recovery.met_too_many_deaths
    kills = recovery.is_last_strike or recovery.stopped_too_often or too_many_deaths
    return Decision.KILL if kills else Decision.RECOVER
