"""Settles a job that fails before its run. A job that Celery cannot read is dead-lettered (moved to
the dead set): it would raise an error that ends the worker; the worker requeues the job as it ends,
and so the job would end one worker after another. If a server refused a command meanwhile, the job
is parked for ``REFUSED_INTERVAL`` seconds. If this worker cannot start a job that was read, the
worker ends, and the job is recovered without a strike.

If Celery raises an error for a message, ``QoS.deliver`` (``transport/deliveries.py``) or the gate
calls ``reject_unreadable`` with it: in the worker's loop, or in a timer or a thread of the pool in
which the gate starts the next job. ``LeasedRequest`` calls ``check_fields`` when it is made.

If the worker dies before the job is settled, the job is in its owner's private list in Redis, and
the reaper of another worker (or of the next one on this host) recovers it, without a strike unless
its start was recorded (a claim records the starts of as many jobs as slots are free). A settlement
that was deferred (``settling.py``) is lost with the worker: the next worker that claims the job
meets the same error.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery worker.
    free the place of a refused job: state:requests state:task_ready(request)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache, partial
from math import isfinite
from typing import Any

import celery
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import ResponseError

from ..app.guard import limits_of
from ..model.foreign import class_name, describe, kind_of
from ..model.job import digest
from ..model.log_text import one_line_each
from ..owner.in_flight.pending import REFUSED_INTERVAL
from ..store.redis.server import is_lost_connection
from ..transport.deliveries import delivery_of
from .outcomes import exception_of, info_of
from .settling import settle
from .stopping import is_stopping

logger = one_line_each(get_logger(__name__))


#: Celery before 5.7 takes it for granted that a message has a stamp for each stamped header. If a
#: revocation names the header of a missing stamp, the job raises a KeyError in each worker. Celery
#: 5.7 runs such a job. No Celery sends one.
NEEDS_EACH_STAMP = celery.VERSION < (5, 7)


class BadField(ValueError):
    """A field of a message is of a type that Celery cannot use. The text quotes no value: it is
    stored as the reason why the job is dead."""

    @classmethod
    def of_type(cls, name: str, value: object) -> BadField:
        """Return the error for a field whose value has a wrong type."""
        return cls(f"{name!r} is of type {class_name(value)}")


def check_fields(request: Any) -> None:
    """Check the fields of a request that would raise an error first in the pool, where the job
    would stay unsettled.

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
    hash((request.id, *request.stamped_headers))  # Celery looks them up in ``revoked``
    _check_stamps(request)
    hard, soft = limits
    for limit in (hard, soft):
        if limit is not None and not (isinstance(limit, (int, float)) and isfinite(limit)):
            raise BadField(f"'timelimit' holds {_kind_of_limit(limit)}")


def _check_stamps(request: Any) -> None:
    if not request.stamped_headers:
        return
    fields = request.message.headers if NEEDS_EACH_STAMP else request.request_dict
    stamps = fields.get("stamps") or {}
    if not isinstance(stamps, (dict, Mapping)):
        raise BadField.of_type("stamps", stamps)
    if NEEDS_EACH_STAMP and not all(name in stamps for name in request.stamped_headers):
        raise BadField("'stamps' lacks a stamp that 'stamped_headers' names")


def _kind_of_limit(limit: object) -> str:
    return (
        "a number that is not finite"
        if isinstance(limit, float)
        else f"a value of type {class_name(limit)}"
    )


class Tries:
    """The tries of this process to settle one job, whose reception failed for one cause. While a
    server refuses a command, the job comes back every ``REFUSED_INTERVAL`` seconds."""

    count = 0

    def next_level(self, first: int) -> int:
        """Count a try, and return the level of its log line: ``first`` for the first one, DEBUG for
        the others."""
        self.count += 1
        return first if self.count == 1 else logging.DEBUG


@lru_cache(maxsize=1000)
def _tries(digest_of_job: str, cause: str) -> Tries:
    """Return the tries for a job and a cause; those of the last 1,000 are remembered."""
    return Tries()


def reject_unreadable(
    message: Any, exc: Exception, ran: bool | None = None, short: bool = False
) -> bool:
    """Settle a job that failed before its run.

    Arguments:
        message: kombu's.
        exc: the error of Celery, of a request class or of the pool.
        ran: whether the job has started; None: the state of its lease says that.
        short: whether the process cannot start another thread.

    Returns:
        whether the job was settled (dead-lettered if it is unreadable, parked if a server refused
        a command). False: a lost connection, another job or the worker's stop is the cause of
        ``exc``, and the caller raises it.

    Raises:
        RuntimeError: the worker is at fault, and ends by this error; the job was recovered without
            a strike (requeued, if ``short``), or that was deferred.
    """
    delivery = delivery_of(message)
    shown = exception_of(info_of(exc))  # a plain one, where the log could not print it
    if delivery is None or is_lost_connection(shown) or is_stopping(delivery.owner):
        return False
    job, owner, executor = delivery.job, delivery.owner, delivery.owner.executor
    if exc is executor.failure:
        return False
    if not delivery.is_open:
        logger.error(
            "Celery raised an error while it discarded job %s, which this worker had already "
            "settled (acked, requeued or moved). This worker does nothing more with the job; the "
            "traceback follows.",
            job.title,
            exc_info=shown,
        )
        return True
    lease = delivery.lease
    has_run = lease.has_run or not lease.may_start if ran is None else ran
    if has_run:
        return False  # the job ran within this call (a solo pool): the caller raises its error
    # Not ``reserved_requests``: a weak set cannot be copied in one step, and the pool's threads
    # change it meanwhile. ``list`` copies the dict in one.
    for request in list(state.requests.values()):
        if request.message is message:
            state.task_ready(request)
    if isinstance(shown, ResponseError):
        # Celery does not reconnect at such an error: the worker would end by it, and so would the
        # next one that claims the job.
        logger.log(
            _tries(digest(job.payload), str(shown)).next_level(logging.WARNING),
            "Job %s could not be received (%s): it is tried again every %g s, without a strike. "
            "Other jobs continue. Check the server that refused, Redis or the result backend.",
            job.title,
            shown,
            REFUSED_INTERVAL,
        )
        delivery.postpone(REFUSED_INTERVAL)
        return True
    app = executor.worker.app
    why = str(exc) if type(exc) is BadField else kind_of(exc)
    if getattr(message, "is_read", False) or isinstance(shown, MemoryError):
        logger.error(
            "This worker cannot start job %s, and ends. The job is requeued without a strike. "
            "The traceback follows.",
            job.title,
            exc_info=shown,
        )
        # Kept for the loop's next tick, which raises it: a timer or a thread of the pool that has
        # called this swallows what is raised here. As a RuntimeError: Celery takes some errors, a
        # KeyError too, for a lost connection, and would only reconnect.
        executor.failure = RuntimeError(
            f"this worker failed to start job {job.title}: {describe(exc)}"
        )
        if short:
            delivery.requeue()
        else:
            # The job gets no strike, but a recovery is counted. At ``recovery_limit`` recoveries
            # the job goes on probation, and if a worker then ends by this error in a solo run, the
            # job gets a strike.
            settlement = partial(owner.settlement.recover_or_kill, not_blamed=True)
            settle(
                delivery, settlement, f"its worker failed to start it: {why}", app, limits_of(app)
            )
        raise executor.failure from exc
    tries = _tries(digest(job.payload), why)
    logger.log(
        tries.next_level(logging.ERROR),
        "Job %s moves to the dead set without a run: Celery cannot read its message. If Redis "
        "refuses that, it is tried again every %g s. Its caller gets a failure notification. Fix "
        "its sender; the traceback follows.",
        job.title,
        REFUSED_INTERVAL,
        exc_info=shown,
    )
    if settle(delivery, owner.settlement.kill, f"cannot be received: {why}", app) is not None:
        tries.count = 0  # if the job is retried from the dead set, that is logged again
    return True
