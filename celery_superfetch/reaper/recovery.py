"""Decides whether a job whose run was lost runs again or is dead-lettered, and reports the outcome.

An *owner* is a process that claims jobs. The reaper calls this for the jobs of a dead owner
(``drain.py``). A live owner calls it in its own process, for a job whose pool process was lost or
that is over a limit (``owner/in_flight/settlement.py``).

Each recovery takes four calls. ``recoveries_of`` reads the history of each job, and decides whether
the job is blamed: by a *strike*, or by a *stop* if its worker was stopping. ``decision_of`` asks
the receivers of the signal ``job_recovering``. ``StrikeCounters.carry_out`` moves each job, and
counts its strike or stop, in one script on the server. ``report_outcome`` logs the outcome and
sends ``job_recovered`` or ``job_killed``.

If the process dies before a job is moved, the job is still in the owner's private list and nothing
is counted: a reaper decides on it again, and ``job_recovering`` is sent again. If it dies after the
move, only the log line and the last signal are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from inspect import getattr_static
from typing import Any

from ..model.config import ANNOUNCE_TASK
from ..model.dead_job import DeadJob
from ..model.foreign import describe, loggable
from ..model.humanize import command
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
    strike_summary,
)
from ..signals import job_killed, job_recovered, job_recovering
from ..store.strike_counters import Notice, Outcome, StrikeCounters

logger = one_line_each(logging.getLogger(__name__))


@dataclass(frozen=True)
class Rules:
    """The rules by which a job is decided on. The app's rules call code of the user; if that
    raises, the caller decides by the package's own (see ``log_failed_rules``)."""

    limits: Limits
    decide: Callable[[Recovery], Decision]
    notice: Notice | None  # makes the failure notification; None: the caller is not informed


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
        running: the jobs that the owner was running, and how it ended.
        struck: digests of jobs that were blamed for this death before. Copies of one message have
            the same digest and the same history: one death blames them once.
        details: for the history of each job: the ``reason``, and the ``app_name`` and ``node``
            (Celery's name) of its owner.

    Raises:
        RedisError: the histories cannot be read.
    """
    counters = strike_counters.counters([digest(job.payload) for job in jobs])
    recoveries = []
    for job, record in zip(jobs, counters, strict=True):
        blamed = blame(job.claim_id, running, record, limits)
        if digest(job.payload) in struck:
            blamed = Blame.NONE
        envelope, is_own_loss = parse(job.payload), running.is_own_loss
        recoveries.append(
            Recovery.of(
                job,
                envelope,
                record,
                blame=blamed,
                limits=limits,
                is_own_loss=is_own_loss,
                **details,
            )
        )
    return recoveries


def decision_of(recovery: Recovery, sender: Any) -> Decision:
    """Ask the receivers of ``job_recovering`` for a decision. The answers of the user's receivers
    replace that of the package's own receiver (``app/guard.py``, which has the attribute
    ``is_default``); among them KILL outweighs RECOVER. A receiver that raises, or answers anything
    else, is ignored."""
    guard, others = Decision.RECOVER, set()
    for receiver, answer in job_recovering.send(sender=sender, recovery=recovery):
        if type(answer) is not Decision:  # no ``isinstance``: a mock can pretend to be one
            if answer is not None:  # Signal.send logged the traceback of one that raised
                logger.error(
                    "Receiver %s of signal job_recovering was ignored for job %s, since it "
                    "returned or raised %s: it must return Decision.RECOVER, Decision.KILL or "
                    "None. Fix or disconnect it.",
                    describe(receiver),
                    recovery.title,
                    describe(answer),
                )
        # ``getattr`` might call code of the user. If that raised an error of the user's own Redis
        # client, it would be taken for one of the broker, and the job would never be settled.
        elif getattr_static(receiver, "is_default", False) is True:
            guard = answer
        else:
            others.add(answer)
    decisive = others or {guard}
    return Decision.KILL if Decision.KILL in decisive else Decision.RECOVER


def log_failed_rules(job: Job, exc: Exception) -> None:
    """Log that code of the user raised an error while a job was settled, and the consequence."""
    logger.error(
        "Job %s could not be settled as its app says (%s; queue=%s, owner=%s): the options of "
        "celery_superfetch alone decide, and if the job is moved to the dead set, its caller gets "
        "no failure notification. Fix the code that raised this error; the traceback follows.",
        job.title,
        describe(exc),
        job.queue_list,
        job.owner,
        exc_info=loggable(exc),
    )


def warn_of(recovery: Recovery) -> None:
    """Log a job's strike or stop, and the next consequence."""
    logger.warning(
        "Job %s recovered (queue=%s, owner=%s): %s; %s.",
        recovery.title,
        recovery.job.queue_list,
        recovery.job.owner,
        recovery.reason,
        recovery.next_consequence,
    )


def report_outcome(outcome: Outcome, sender: Any) -> DeadJob | None:
    """Log the outcome of a recovery, and send its signal; return the dead job if the job was
    dead-lettered. If a failure notification was queued (a job that informs the publisher), the
    worker that runs it sends ``job_killed`` instead. Of a dead-lettered notification no process
    sends it."""
    recovery = outcome.recovery
    if not outcome.dead_id:
        often = recovery.blame is Blame.STOP and recovery.stops >= STOPS_NAMED
        if recovery.blame.is_strike or often:
            warn_of(recovery)
        job_recovered.send(sender=sender, recovery=recovery)
        return None
    dead = DeadJob.of(recovery, outcome.dead_id.decode())
    # ``counted``: the job was recovered before, and its next claim found it over a limit.
    logger.error(
        "Job %s moved to the dead set%s after %s (queue=%s, owner=%s): %s. `%s dead show %s` shows "
        "its history; once the cause is fixed, `dead retry` requeues it.",
        recovery.title,
        " before it ran again," if recovery.counted else "",
        strike_summary(recovery.strikes, recovery.recoveries, recovery.stops),
        recovery.job.queue_list,
        recovery.job.owner,
        recovery.why_dead,
        command(),
        dead.id,
    )
    if not outcome.has_notice and recovery.task != ANNOUNCE_TASK:
        job_killed.send(sender=sender, job=dead)
    return dead
