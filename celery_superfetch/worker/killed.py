"""Jobs that an operator moves to the dead set: their worker stops with them, at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery.concurrency.base import BasePool
from celery.utils.log import get_logger
from celery.worker.control import control_command
from redis.exceptions import RedisError

from ..app.kill import COMMAND, GONE
from ..model.job import Job
from ..owner.in_flight.in_flight import InFlight
from ..owner.in_flight.jobs import State
from .stopping import memberships_of

logger = get_logger(__name__)

BEGUN = "it is on its way into the worker, or its task may begin with it unseen: try again"
ENDLESS = "it runs in a pool that cannot end it: only the worker's end does"


@control_command(name=COMMAND, visible=False)
def stop_with(state: Any, *, owner: str, jobs: Sequence[str]) -> dict[str, Any]:
    """Stop with those of some jobs, by their claim ids, that are in the dead set by now. Returns
    ``error``, or ``jobs``: claim id -> why this worker cannot stop with it, or has it not; else
    empty. Celery's ``revoke`` would have each worker discard what is put back from there."""
    worker = state.consumer.controller
    ours = (one.in_flight for one in memberships_of(worker) if one.owner == owner)
    in_flight = next(ours, None)
    if in_flight is None:
        return {"error": f"this worker is not owner {owner} any more"}
    with in_flight.lock:
        held = {job.claim_id: job for job in in_flight.jobs if job.owner == owner}
    return {"jobs": {name: _stop(worker, in_flight, held.get(name)) for name in jobs}}


def _stop(worker: Any, in_flight: InFlight, job: Job | None) -> str:
    if job is None:
        return GONE
    pool, jobs = worker.pool, in_flight.jobs
    with in_flight.lock:  # nothing starts meanwhile
        state, runs = jobs.get(job), jobs.runs(job)
        if state in (None, State.RETURNING, State.SETTLED):
            return GONE
        if state in (State.CLAIMED, State.GATHERED):
            return BEGUN
        out = list(worker.superfetch_gate.out) if runs else []
        request = next((what.request for what in out if what.job == job), None)
        cannot = getattr(pool.terminate_job, "__func__", None) is BasePool.terminate_job
        why = ENDLESS if runs and (cannot or request is None) else ""
        try:
            in_flight.catch_up()
            if in_flight.lists.has(job):
                return why
            if why:  # it began a moment ago
                in_flight.lose(job)
                return why
        except (RedisError, OSError):
            # It may be in the dead set, and so must not begin here. Else it is its queue's again.
            if not runs:
                in_flight.requeue([job])
            raise
        in_flight.drop(job)
    if request is not None:
        request.end_killed(pool)
    logger.info("Job %s was moved to the dead set by an operator; it ends here.", job.title)
    return ""
