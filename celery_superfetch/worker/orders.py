"""What an operator orders of this worker by Celery's remote control: to let go of some jobs. Only
the worker knows what it has started, and only here can a start not come in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool
from celery.utils.log import get_logger
from celery.worker.control import control_command
from redis.exceptions import RedisError

from ..app.announcer import announcements_of
from ..app.orders import COMMAND
from ..model.job import Job, digest, parse
from ..owner.in_flight.jobs import State
from ..owner.membership import Membership, memberships
from ..transport.channel import Channel

logger = get_logger(__name__)

BY_AN_OPERATOR = "killed by an operator"


class Refused(Exception):
    """Says why an order is not carried out, and what to do instead."""


GONE = "its worker does not have it any more: it has ended, or went back to its queue"
BEGUN = "it is on its way into the worker, or its task may begin with it unseen: try again"
LATE = "there was no time left for it, and nothing was done: try again"
UNANSWERED = (
    "its worker could not ask the server ({}), which may have done it all the same: see `jobs` and "
    "`dead list`"
)
RUNS = "it runs: `jobs kill --terminate` ends it; when its worker is stopped it goes back"
ALONE = "it is on probation and has its worker for itself: when that is stopped it goes back"
DUE = (
    "it waits for its time, and keeps no place from others: `jobs kill` takes it out; when its "
    "worker is stopped it goes back"
)
UNKNOWN = "its worker does not know its task, and gives it back within half a minute"
LIMITED = (
    "its task has a rate limit here, for which it may wait: `jobs kill` takes it out; when its "
    "worker is stopped it goes back"
)


@control_command(name=COMMAND, visible=False)
def carry_out(
    state: Any, *, owner: str, until: int, what: str, jobs: Sequence[str], **how: Any
) -> dict[str, Any]:
    """Carry out one order for some jobs, named by their digests, until some time (server ms).
    Returns ``error``, or ``jobs``: for each ``{"ok": ...}`` or ``{"error": why not}``."""
    ours = memberships_of(state.consumer.controller)
    membership = next((one for one in ours if one.owner == owner), None)
    if membership is None:
        return {"error": f"this worker is not owner {owner} any more"}
    ends = monotonic() + (until - membership.database.server_time()) / 1000
    held: dict[str, list[Job]] = {}
    with membership.in_flight.lock:
        for job in membership.in_flight.jobs:
            held.setdefault(digest(job.payload), []).append(job)
    order: Any = {"release": release, "kill": kill}[what]
    told: dict[str, Any] = {name: {"error": LATE} for name in jobs}
    for name in jobs:
        if monotonic() >= ends:  # whoever gave the order is about to be told that nothing was done
            break
        told[name] = _tried(order, membership, held.get(name, ()), how)
    return {"jobs": told}


def _tried(
    order: Callable[..., Mapping[str, Any]],
    membership: Membership,
    copies: Sequence[Job],
    how: Mapping[str, Any],
) -> dict[str, Any]:
    """The first of some copies of a job with which it can be done."""
    why = GONE
    for job in copies:
        try:
            done = order(membership, job, **how)
        except Refused as exc:
            why = str(exc)
        except (RedisError, OSError) as exc:  # it is there again for the others, perhaps
            return {"error": UNANSWERED.format(exc)}
        else:
            logger.info("Job %s was taken from its place by an operator.", job.title)
            return {"ok": done}
    return {"error": why}


def release(membership: Membership, job: Job) -> dict[str, Any]:
    """Give back to the front of its queue what waits here for its turn."""
    with membership.in_flight.lock:
        if why := why_not(membership, job):
            raise Refused(why)
        if not any(channel.qos.release(job) for channel in channels_of(membership.runner.worker)):
            raise Refused(BEGUN)
    return {}


def kill(membership: Membership, job: Job, terminate: bool = False) -> dict[str, Any]:
    """Move a job to the dead set; what runs is ended, if that is meant."""
    in_flight, worker = membership.in_flight, membership.runner.worker
    request = None
    with in_flight.lock:
        if why := _not_ours(in_flight.jobs.get(job)):
            raise Refused(why)
        if in_flight.jobs.runs(job):
            if not terminate:
                raise Refused("it runs: --terminate ends it, as Celery's revoke does")
            if getattr(worker.pool.terminate_job, "__func__", None) is BasePool.terminate_job:
                raise Refused("it runs in a pool that cannot end it: only the worker's end does")
            out = list(worker.superfetch_gate.out)
            request = next((what.request for what in out if what.job == job), None)
        elif in_flight.jobs[job] is State.CLAIMED:
            raise Refused(BEGUN)
        try:
            dead = membership.lost_runs.kill(job, BY_AN_OPERATOR, worker.app)
        except (RedisError, OSError):
            # It may be in the dead set, and so must not begin here. Else it is its queue's again.
            if not in_flight.jobs.runs(job):
                in_flight.requeue([job])
            raise
    if dead is None:
        raise Refused(GONE)
    if request is not None:
        request.end_killed(worker.pool)
    announcements_of(worker.app, membership).soon(dead)
    return {"dead_id": dead.id}


def why_not(membership: Membership, job: Job) -> str:
    """Why a job is not to be released; empty where it waits for nothing but a slot."""
    in_flight, worker = membership.in_flight, membership.runner.worker
    if why := _not_ours(in_flight.jobs.get(job)):
        return why
    if job == in_flight.jobs.alone:
        return ALONE
    if in_flight.jobs.runs(job):
        return RUNS
    if job in in_flight.aside or job in in_flight.moves:
        return DUE
    task = parse(job.payload).task
    if task not in worker.app.tasks:  # it has no turn that would come: its place would stay taken
        return UNKNOWN
    return LIMITED if worker.consumer.task_buckets.get(task) else ""


def _not_ours(state: State | None) -> str:
    if state in (None, State.RETURNING, State.SETTLED):
        return GONE
    return BEGUN if state is State.GATHERED else ""


def memberships_of(worker: Any) -> list[Membership]:
    return [one for one in memberships() if one.runner.worker is worker]


def channels_of(worker: Any) -> list[Channel]:
    """Those from which a worker consumes at this moment."""
    connection = worker.consumer.connection
    channels = list(connection.transport.channels or ()) if connection else []
    return [channel for channel in channels if getattr(channel, "_fetch", None) is not None]
