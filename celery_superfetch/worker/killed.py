"""Jobs that an operator kills: their worker moves them to the dead set, and ends what runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery.concurrency.base import BasePool
from celery.worker.control import control_command
from redis.exceptions import RedisError

from ..app.kill import COMMAND
from ..model.job import Job
from ..owner.in_flight.jobs import State
from ..owner.membership import Membership
from .stopping import memberships_of

BY_AN_OPERATOR = "killed by an operator"
GONE = "its worker does not have it any more: it has ended, or went back to its queue"
BEGUN = "it is on its way into the worker, or its task may begin with it unseen: try again"
ENDLESS = "it runs in a pool that cannot end it: only the worker's end does"
UNANSWERED = (
    "the server did not answer ({}), and may have done it all the same: see `jobs` and `dead list`"
)


@control_command(name=COMMAND, visible=False)
def kill(state: Any, *, owner: str, jobs: Sequence[str], until: float) -> dict[str, Any]:
    """Kill some jobs, by their claim ids, unless the server's clock (ms) is past ``until``. Returns
    ``error``, or ``jobs``: claim id -> ``dead_id``, or ``error``. By Celery's ``revoke`` each
    worker would discard what is put back from the dead set."""
    worker = state.consumer.controller
    membership = next((one for one in memberships_of(worker) if one.owner == owner), None)
    if membership is None:
        return {"error": f"this worker is not owner {owner} any more"}
    if membership.database.server_time() > until:
        return {"error": "this worker heard of it too late"}
    in_flight = membership.in_flight
    with in_flight.lock:
        held = {job.claim_id: job for job in in_flight.jobs if job.owner == owner}
    return {"jobs": {name: _kill(worker, membership, held.get(name)) for name in jobs}}


def _kill(worker: Any, membership: Membership, job: Job | None) -> dict[str, str]:
    if job is None:
        return {"error": GONE}
    in_flight = membership.in_flight
    with in_flight.lock:  # nothing starts meanwhile
        state, runs = in_flight.jobs.get(job), in_flight.jobs.runs(job)
        if state in (None, State.RETURNING, State.SETTLED):
            return {"error": GONE}
        if state in (State.CLAIMED, State.GATHERED):
            return {"error": BEGUN}
        out = list(worker.superfetch_gate.out) if runs else []
        request = next((what.request for what in out if what.job == job), None)
        cannot = getattr(worker.pool.terminate_job, "__func__", None) is BasePool.terminate_job
        if runs and (cannot or request is None):
            return {"error": ENDLESS}
        try:
            dead = membership.lost_runs.kill(job, BY_AN_OPERATOR, worker.app)
        except (RedisError, OSError) as exc:
            # It may be in the dead set, and so must not begin here. Else it is its queue's again.
            if not runs:
                in_flight.requeue([job])
            return {"error": UNANSWERED.format(exc)}
    if dead is None:
        return {"error": GONE}
    if request is not None:
        request.end_killed(worker.pool)
    return {"dead_id": dead.id}
