"""What a worker does at control commands: at ours it kills jobs that it has, and at Celery's
`revoke`, which all workers hear, it calls those that are parked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, wraps
from typing import Any

from celery.concurrency.base import BasePool
from celery.utils.log import get_logger
from celery.worker.control import Panel, control_command
from redis.exceptions import RedisError

from ..model.config import KILL_COMMAND
from ..model.dead_job import BY_AN_OPERATOR
from ..model.job import Job
from ..model.log_text import one_line_each
from ..owner.in_flight.jobs import State
from ..owner.owner import Owner
from .stopping import owners_of

logger = one_line_each(get_logger(__name__))

TURN = 60.0  # seconds for which one worker of all that hear of a revoked job has looked for it

GONE = "its worker does not have it any more: it has ended, or went back to its queue"
BEGUN = "it is on its way into the worker, or its task may begin with it unseen: try again"
ENDLESS = "it runs in a pool that cannot end it: only the worker's end does"
UNANSWERED = (
    "the server did not answer ({}), and may have done it all the same: see `jobs` and `dead list`"
)


@control_command(name=KILL_COMMAND, visible=False)
def kill(state: Any, *, owner: str, jobs: Sequence[str], until: float) -> dict[str, Any]:
    """Kill some jobs, by their claim ids, unless the server's clock (ms) is past ``until``. Returns
    ``error``, or ``jobs``: claim id -> ``dead_id``, or ``error``. By Celery's ``revoke`` each
    worker would discard what is put back from the dead set."""
    worker = state.consumer.controller
    mine = next((candidate for candidate in owners_of(worker) if candidate.name == owner), None)
    if mine is None:
        return {"error": f"this worker is not owner {owner} any more"}
    if mine.database.server_time() > until:
        return {"error": "this worker heard of it too late"}
    held = mine.leases.claims_of(owner)
    return {"jobs": {name: _kill(worker, mine, held.get(name)) for name in jobs}}


def _kill(worker: Any, owner: Owner, job: Job | None) -> dict[str, str]:
    if job is None:
        return {"error": GONE}
    with owner.leases.lock:  # nothing starts meanwhile
        state, runs = owner.leases.state_of(job), owner.leases.is_running(job)
        if state in (None, State.RETURNING, State.SETTLED):
            return {"error": GONE}
        if state in (State.CLAIMED, State.GATHERED):
            return {"error": BEGUN}
        out = list(worker.superfetch_gate.out) if runs else []
        request = next((handover.request for handover in out if handover.job == job), None)
        cannot = getattr(worker.pool.terminate_job, "__func__", None) is BasePool.terminate_job
        if runs and (cannot or request is None):
            return {"error": ENDLESS}
        try:
            dead = owner.settlement.kill(job, BY_AN_OPERATOR, worker.app)
        except (RedisError, OSError) as exc:
            # It may be in the dead set, and so must not begin here. Else it is its queue's again.
            if not runs:
                owner.leases.requeue([job])
            return {"error": UNANSWERED.format(exc)}
    if dead is None:
        return {"error": GONE}
    if request is not None:
        request.end_killed(worker.pool)
    return {"dead_id": dead.id}


def call_revoked() -> None:
    """Have ``revoke`` call what is parked: it comes at once, and whoever claims it discards it."""
    revoke = Panel.data["revoke"]
    if getattr(revoke, "__wrapped__", None) is not None:
        return

    @wraps(revoke)
    def revoke_all(state: Any, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        done = revoke(state, task_id, *args, **kwargs)
        ids = [task_id] if isinstance(task_id, str) else [*task_id]
        for owner in owners_of(state.consumer.controller):
            # In another thread: it looks through all that are parked.
            owner.overdue.append(partial(_call, owner, ids))
        return done

    Panel.data["revoke"] = revoke_all


def _call(owner: Owner, ids: Iterable[str]) -> None:
    mine = [id for id in ids if owner.database.take_turn(f"revoke:{id}", TURN)]
    if mine:
        _recall(owner, mine)


def _recall(owner: Owner, mine: list[str]) -> None:
    try:
        count = owner.leases.recall(mine)
    except (RedisError, OSError):
        owner.overdue.append(partial(_recall, owner, mine))  # whose turn it is, is it once
        return
    if count:
        logger.info("%d revoked jobs that were due later come at once, to be discarded.", count)
