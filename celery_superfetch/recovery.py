"""A recovery and the decision on it: pure values, and one pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .job import Envelope, Job, digest


class Decision(Enum):
    """What becomes of a job whose run was cut short."""

    RECOVER = "recover"
    KILL = "kill"


@dataclass(frozen=True)
class Counters:
    """What is remembered of one job within the strike window."""

    strikes: int = 0
    recoveries: int = 0
    #: Earlier recoveries, oldest first: owner, reason, strike, time (server s).
    history: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Recovery:
    """One job that is about to be recovered; the counters include this time."""

    job: Job
    #: Why its owner lost it.
    reason: str
    #: Name of the owner's Celery app; empty outside Celery.
    app_name: str
    #: Whether this recovery counts as a strike.
    strike: bool
    strikes: int
    recoveries: int
    history: tuple[Mapping[str, Any], ...] = ()
    #: Celery's names for it; None where the payload does not say.
    task: str | None = None
    task_id: str | None = None
    #: False: the payload is not a message at all.
    parsed: bool = True

    @classmethod
    def of(
        cls,
        job: Job,
        envelope: Envelope,
        counters: Counters,
        *,
        reason: str,
        app_name: str,
        strike: bool,
    ) -> Recovery:
        """The recovery of ``job`` after ``counters``."""
        return cls(
            job=job,
            reason=reason,
            app_name=app_name,
            strike=strike,
            strikes=counters.strikes + int(strike),
            recoveries=counters.recoveries + 1,
            history=counters.history,
            task=envelope.task,
            task_id=envelope.task_id,
            parsed=envelope.message is not None,
        )

    @property
    def digest(self) -> str:
        """The job's name in our keys."""
        return digest(self.job.payload)

    @property
    def title(self) -> str:
        """The job as logs name it."""
        name = self.task or ("unknown task" if self.parsed else "unparseable payload")
        return f"{name}[{self.task_id or self.digest}]"


def decide(strikes: int, recoveries: int, strike_limit: int, recovery_limit: int) -> Decision:
    """RECOVER until a limit is reached; both counts include the recovery under way."""
    if strikes >= strike_limit or recoveries >= recovery_limit:
        return Decision.KILL
    return Decision.RECOVER
