"""Applies the limits of strikes and stops to a job before it runs. A *strike* is a lost run that
may be the job's own fault, a *stop* a run that was cut short because its worker was stopping.

``QoS.deliver`` (``transport/deliveries.py``) calls ``apply_limits`` for each claimed job, in the
thread of the worker's event loop and before a decoder sees the job's bytes.

If the worker dies before the job is moved (to the dead set, or to probation), the job is in its
owner's private list in Redis, and the reaper of another worker (or of the next one on this host)
recovers it, without a strike unless its start was recorded (a claim records the starts of as many
jobs as slots are free). The next worker that claims the job applies the limits again.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from ..app.guard import limits_of
from ..model.job import parse
from ..model.log_text import one_line_each
from ..model.strikes import STOPS_NAMED, stops_consequence
from ..owner.in_flight.lease import Lease
from ..owner.owner import Owner

logger = one_line_each(get_logger(__name__))


def apply_limits(lease: Lease, channel: Any) -> bool:
    """Dead-letter a claimed job that has used up its strikes or stops, unless a receiver of
    ``job_recovering`` lets it run.

    Put a job on *probation* (it waits to run with no other job in its worker) before its last stop;
    and before its last strike, if a crash of this worker would end all of its jobs.

    Return whether the job has left this worker: dead-lettered, or put on probation.
    """
    counters = lease.counters
    if counters is None or not (counters.strikes or counters.stops):
        return False
    owner, job = channel.owner, lease.job
    app = owner.executor.worker.app
    limits, stops, task = limits_of(app), counters.stops, parse(job.payload).task
    stop_limit = limits.stops(task) if stops else None
    # ``kill_if_over_limit`` reads the job's history and compares strikes with their limit.
    if counters.strikes or (stop_limit is not None and stops >= stop_limit):
        owner.settlement.kill_if_over_limit(lease, app, limits)
        if lease.is_gone:
            return True
    # A stop cuts short all jobs of a worker. If this job runs alone, it alone can be to blame.
    is_next_the_last = stop_limit is not None and stops == stop_limit - 1
    goes_on_probation = is_next_the_last and not counters.solo_runs
    if stops >= STOPS_NAMED or goes_on_probation:
        logger.warning(
            "Job %s: %s%s. If these were not deploys, find what stops the worker: a signal, a "
            "control command or a memory limit.",
            job.title,
            stops_consequence(stops, stop_limit),
            "; before that it runs in isolation" if is_next_the_last else "",
        )
    # If the job lost only its own pool processes so far, prefork workers have recovered it to its
    # queue, and not put it on probation. A crash of this worker would end other jobs as well, so
    # that its next strike would be a suspect one (the culprit is not certain). A suspect strike is
    # never the last one: the job would run once too often.
    strike_limit = limits.strikes(task)
    before_last = strike_limit is not None and counters.strikes >= strike_limit - 1 > 0
    if before_last and not counters.solo_runs and crash_ends_all_jobs(owner):
        goes_on_probation = True
    if goes_on_probation:
        owner.suspects.put_on_probation(lease)
    return goes_on_probation


def crash_ends_all_jobs(owner: Owner) -> bool:
    """Return whether a job that kills its process ends all jobs of the worker: threads and
    greenlets, but no pool of processes."""
    return not owner.executor.prefork
