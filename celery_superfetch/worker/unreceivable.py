"""Jobs that this worker settles before a run: over their limit (dead-lettered), due later (parked),
or unreadable for Celery (dead-lettered). If Celery got an unreadable one, the error would end the
worker, which requeues the job, and so end one worker after another.

The channel calls ``intercept`` and ``parks`` for each claimed job, in the consumer's loop. Errors
of Celery come to ``refuses``, from the channel and from the gate. Other modules of the worker
settle their jobs by ``settle``. If the worker dies before a job is settled, the job is in the
private list.

Foreign names:

celery worker.
    refuse a message that would end the worker: request:Request.time_limits
    free the place of a refused job: state:requests state:reserved_requests
        state:task_ready(request)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from time import gmtime, time
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import DataError, RedisError

from ..app.guard import limits_of
from ..model.dead_job import DeadJob
from ..model.foreign import class_name, describe, kind_of
from ..model.job import eta_of, parse
from ..model.log_text import one_line_each
from ..model.strikes import STOPS_NAMED, stops_outlook
from ..owner.in_flight.lease import Lease
from ..owner.owner import Owner
from ..transport.deliveries import Delivery, delivery_of
from .outcomes import exception_of, info_of
from .stopping import told_to_stop

logger = one_line_each(get_logger(__name__))

#: Seconds until an ETA from which on it is likely a mistake: of the century, or of the unit, since
#: a countdown of four days, given in milliseconds, is eleven years.
FAR = 10 * 365 * 86_400


def intercept(lease: Lease, channel: Any) -> bool:
    """Dead-letter a claimed job that has used up its strikes or stops, unless a receiver of
    ``job_recovering`` lets it run. Put a job on probation before its last stop; and before its last
    strike, if a crash of this worker ends all of its jobs. Return whether the job has left this
    worker (in both cases)."""
    counters = lease.counters
    if counters is None or not (counters.strikes or counters.stops):
        return False
    owner, job = channel.owner, lease.job
    app = owner.runner.worker.app
    limits, stops, task = limits_of(app), counters.stops, parse(job.payload).task
    stop_limit = limits.stops(task) if stops else None
    if counters.strikes or (stop_limit is not None and stops >= stop_limit):
        owner.settlement.kill_if_over_limit(lease, app, limits)
        if lease.is_gone:
            return True
    # A stop cuts short all jobs of a worker. If this one runs alone, it is the only one to blame.
    is_next_the_last = stop_limit is not None and stops == stop_limit - 1
    goes_on_probation = is_next_the_last and not counters.probation
    if stops >= STOPS_NAMED or goes_on_probation:
        logger.warning(
            "Job %s: %s%s. If these were no deploys, a job or a watcher stops the worker: look for "
            "a signal, a control command or a memory limit.",
            job.title,
            stops_outlook(stops, stop_limit),
            "; before that it runs alone" if is_next_the_last else "",
        )
    # A prefork worker recovered it to its queue and not on probation: it had lost only its own pool
    # processes. Here its next loss would be a suspect strike if other jobs ran as well. That is
    # never the last strike, so the job would run once too often.
    strike_limit = limits.strikes(task)
    before_last = strike_limit is not None and counters.strikes >= strike_limit - 1 > 0
    if before_last and not counters.probation and crash_ends_all_jobs(owner):
        goes_on_probation = True
    if goes_on_probation:
        owner.suspects.put_on_probation(lease)
    return goes_on_probation


def crash_ends_all_jobs(owner: Owner) -> bool:
    """Return whether a job that kills its process ends all jobs of the worker: threads and
    greenlets, but no pool of processes."""
    return not owner.runner.prefork


def parks(message: Any) -> bool:
    """Park a job that is due so much later that it waits on the server and not in this worker;
    return whether that was done."""
    delivery = delivery_of(message)
    if delivery is None or not (due := _due(message, delivery.owner)):
        return False
    if not delivery.owner.leases.park(delivery.lease, due * 1000):
        return False
    delivery.drop()
    if due - time() > FAR:
        logger.warning(
            "Job %s is not due before the year %d. It waits on the server until then, parked. If "
            "its sender has mistaken the time, revoke it; `superfetch jobs --state parked` shows "
            "what is parked, and when it is due.",
            delivery.job.title,
            gmtime(due).tm_year,
        )
    return True


def _due(message: Any, owner: Owner) -> float:
    """Return when a job is due (s since the epoch); 0: at once, also if it is revoked, or cannot be
    read: Celery then handles that."""
    try:
        # In protocol 1 the body has these fields.
        fields = message.headers if "task" in message.headers else message.payload
        if fields.get("id") in state.revoked:
            return 0.0
        eta = fields.get("eta")
        due = 0.0 if eta is None else eta_of(eta)
        return max(due, owner.runner.not_before(fields.get("task"), owner))
    except Exception:  # whatever a body can do to a decoder
        return 0.0


class BadField(ValueError):
    """A field of a message is of a type that Celery cannot use. The text quotes no value: it is
    stored as the reason why the job is dead."""

    @classmethod
    def of_type(cls, name: str, value: object) -> BadField:
        """Return the error for a field whose value has a wrong type."""
        return cls(f"{name!r} is of type {class_name(value)}")


def check_fields(request: Any) -> None:
    """Check those of a request's fields that would raise only in the pool and leave the job
    unsettled.

    Raises:
        BadField: a field has a wrong type.
        TypeError: the id cannot be hashed.
    """
    (_, kwargs, embed), limits = request.decoded_body, request.time_limits
    retries = request.request_dict.get("retries")
    if not isinstance(limits, (list, tuple)):
        raise BadField.of_type("timelimit", limits)
    if not isinstance(request.name, str):
        raise BadField.of_type("shadow", request.name)
    if not (retries is None or isinstance(retries, int)):
        raise BadField.of_type("retries", retries)
    if not isinstance(kwargs, (dict, Mapping)):
        raise BadField.of_type("kwargs", kwargs)
    if not (embed is None or isinstance(embed, (dict, Mapping))):
        raise BadField.of_type("embed", embed)
    hash((request.id, *(request.stamped_headers or ())))  # Celery looks them up in ``revoked``
    hard, soft = limits
    for limit in (hard, soft):
        if limit is not None and not (isinstance(limit, (int, float)) and isfinite(limit)):
            raise BadField(f"'timelimit' holds {_kind_of_limit(limit)}")


def _kind_of_limit(limit: object) -> str:
    return (
        "no finite number" if isinstance(limit, float) else f"a value of type {class_name(limit)}"
    )


def is_trouble(exc: BaseException) -> bool:
    """Return whether an error comes from a server that cannot be reached, or refuses a command: the
    job is not to blame. A ``DataError`` is the job's fault: redis-py refuses a value of it."""
    return isinstance(exc, (OSError, RedisError)) and not isinstance(exc, DataError)


def refuses(message: Any, exc: Exception, ran: bool | None = None, short: bool = False) -> bool:
    """Settle a job that failed before its run.

    Arguments:
        message: kombu's.
        exc: the error of Celery, of a request class or of the pool.
        ran: whether the job has started, if that is known.
        short: the process cannot start another thread.

    Returns:
        whether the job was settled (dead-lettered if it is unreadable); False: ``exc`` is of the
        server, of another job or of the worker's stop, and the caller raises it.

    Raises:
        RuntimeError: the worker is at fault, and ends by it; the job was requeued.
    """
    delivery = delivery_of(message)
    shown = exception_of(info_of(exc))  # a plain one, where the log could not print it
    if delivery is None or is_trouble(shown) or told_to_stop(delivery.owner):
        return False
    job, owner, runner = delivery.job, delivery.owner, delivery.owner.runner
    if exc is runner.failure:
        return False
    if not delivery.is_open:
        logger.error(
            "Celery failed while it discarded job %s, which this worker had settled, given back or "
            "killed before.",
            job.title,
            exc_info=shown,
        )
        return True
    if not delivery.lease.may_start if ran is None else ran:
        return False  # it has started, within this call (a solo pool): its error is to be raised
    for request in [*state.reserved_requests, *state.requests.values()]:
        if request.message is message:
            state.task_ready(request)
    app = runner.worker.app
    why = str(exc) if type(exc) is BadField else kind_of(exc)
    if getattr(message, "is_read", False) or isinstance(shown, MemoryError):
        logger.error(
            "This worker cannot begin job %s, and ends. The job goes back to its queue, without a "
            "strike.",
            job.title,
            exc_info=shown,
        )
        # Kept for the loop's next tick, which raises it: a timer or a thread of the pool that has
        # called this swallows what is raised here. As a RuntimeError: Celery takes some errors, a
        # KeyError too, for a lost connection, and would only reconnect.
        runner.failure = RuntimeError(f"this worker failed over job {job.title}: {describe(exc)}")
        if short:
            delivery.requeue()
        else:
            # Without a strike, but as a recovery: at ``recovery_limit`` the job goes on probation,
            # and gets a strike if a worker then fails over it in a solo run.
            way = partial(owner.settlement.recover_or_kill, excused=True)
            settle(delivery, way, f"its worker failed over it: {why}", app, limits_of(app))
        raise runner.failure from exc
    logger.error(
        "Celery cannot read the message of job %s. The job goes to the dead set without a run, and "
        "its caller is told; mend whoever sent it.",
        job.title,
        exc_info=shown,
    )
    settle(delivery, owner.settlement.kill, f"cannot be received: {why}", app)
    return True


def settle(
    delivery: Delivery, way: Callable[..., DeadJob | None], why: str, *args: Any
) -> DeadJob | None:
    """Settle a job by ``way``, a method of ``Settlement`` that gets the lease, ``why`` and
    ``args``. If the server cannot be reached, the maintenance thread calls it later. Return the
    dead job, if it is one now."""
    end = partial(delivery.end_by, way, why, *args)
    try:
        return end()
    except (RedisError, OSError) as exc:
        logger.warning(
            "Job %s (%s) cannot leave this worker yet (%s): it is safe in its private list "
            "until the server answers.",
            delivery.job.title,
            why,
            exc,
        )
        delivery.owner.overdue.append(end)
        return None
