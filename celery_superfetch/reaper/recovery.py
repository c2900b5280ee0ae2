"""Decides whether a job that its owner lost runs again, and reports what was done with it.

The reaper calls this for the jobs of a dead owner, and a worker for jobs whose pool process was
lost. A decision takes three steps: `recoveries_of` reads the history of each job, `decision_of`
asks the receivers of the signal `job_recovering`, and `StrikeCounters.carry_out` moves and counts
the jobs on the server; then `report_outcome` logs and sends the signal. If the process dies before
the jobs are moved, nothing has changed, and the next pass decides anew. If it dies after that, the
jobs have moved, and their log lines and signals are missed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from ..model.dead_job import DeadJob
from ..model.foreign import describe
from ..model.job import Job, digest, parse
from ..model.log_text import one_line_each
from ..model.strikes import (
    STOPS_NAMED,
    Blame,
    Decision,
    Limits,
    Recovery,
    Running,
    blame,
    toll,
)
from ..model.words import command
from ..signals import job_killed, job_recovered, job_recovering
from ..store.counters import Outcome, StrikeCounters

logger = one_line_each(logging.getLogger(__name__))


def recoveries_of(
    jobs: Sequence[Job],
    strike_counters: StrikeCounters,
    running: Running,
    limits: Limits,
    struck: Collection[str] = (),
    **details: str,
) -> list[Recovery]:
    """Build the recoveries of some jobs of one owner, from the history of each.

    Arguments:
        running: the jobs that the owner was running.
        struck: digests that have had the strike of this death: copies of a message share them.
        details: as for ``Recovery.of``.

    Raises:
        RedisError: the histories cannot be read.
    """
    counters = strike_counters.counters([digest(job.payload) for job in jobs])
    recoveries = []
    for job, record in zip(jobs, counters, strict=True):
        blamed = blame(job.claim_id, running, record, limits)
        if digest(job.payload) in struck:
            blamed = Blame.NONE
        envelope, own = parse(job.payload), running.own
        recoveries.append(
            Recovery.of(job, envelope, record, blame=blamed, limits=limits, own=own, **details)
        )
    return recoveries


def decision_of(recovery: Recovery, sender: Any) -> Decision:
    """Ask the receivers of ``job_recovering``. KILL outweighs RECOVER, and the shipped guard
    decides if no other receiver does. A receiver that raises, or answers anything else, is
    ignored."""
    guard, others = Decision.RECOVER, set()
    for receiver, answer in job_recovering.send(sender=sender, recovery=recovery):
        if type(answer) is not Decision:  # its ``__class__`` may be anything, too
            if answer is not None:  # Signal.send logged the traceback of one that raised
                logger.error(
                    "Receiver %s of job_recovering answered %s for %s: only RECOVER, KILL or "
                    "None count. It was ignored; mend or disconnect it.",
                    describe(receiver),
                    describe(answer),
                    recovery.title,
                )
        elif getattr(receiver, "shipped", False):
            guard = answer
        else:
            others.add(answer)
    decisive = others or {guard}
    return Decision.KILL if Decision.KILL in decisive else Decision.RECOVER


def warn_of(recovery: Recovery) -> None:
    """Log a job's strike or stop, and the next consequence."""
    logger.warning("Job %s: %s (%s).", recovery.title, recovery.outlook, recovery.reason)


def report_outcome(outcome: Outcome, sender: Any) -> DeadJob | None:
    """Log the outcome of a recovery, and send its signal; return the dead job, if it is one now.
    Where a failure notification was put on the job's queue, that one sends ``job_killed`` later."""
    recovery = outcome.recovery
    if not outcome.dead_id:
        often = recovery.blame is Blame.STOP and recovery.stops >= STOPS_NAMED
        if recovery.blame.is_strike or often:
            warn_of(recovery)
        job_recovered.send(sender=sender, recovery=recovery)
        return None
    dead = DeadJob.of(recovery, outcome.dead_id.decode())
    logger.error(
        "Job %s was killed%s after %s (last: %s). It is whole in the dead set: `%s dead show %s` "
        "says why, and `dead retry` puts it back.",
        recovery.title,
        " before it ran again," if recovery.counted else "",
        toll(recovery.strikes, recovery.recoveries, recovery.stops),
        recovery.why_dead,
        command(),
        dead.id,
    )
    if outcome.notice is None:
        job_killed.send(sender=sender, job=dead)
    return dead
