"""Settles a job where its server or a callback of its request fails.

``settle`` defers a recovery, or a move to the dead set, while the server cannot be reached. If the
server refuses it, a job that has not run is requeued after a pause. The other modules of
``worker/`` call it for each job that cannot run.

``call_back`` calls a callback of a job's request when the pool reports the end of a job, or a time
limit. If the callback raises an error, it frees the job's slot in the worker, and recovers the job.
``LeasedRequest`` calls each such callback through it: in the worker's loop (prefork, solo), or in
the thread or greenlet that ran the job. ``in_process`` calls it for a task that stops its worker.

If the worker dies before the job is settled (acked, requeued or dead-lettered), the job is in its
owner's private list in Redis, and the reaper of another worker recovers it, with a strike if its
start was recorded. So a job whose task has succeeded runs again if the worker dies before the ack.
A deferred settlement is lost with the worker.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery worker.
    free the slot of a job: state:task_ready(request)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError, ResponseError

from ..app.guard import limits_of
from ..model.dead_job import DeadJob
from ..model.foreign import kind_of
from ..model.log_text import one_line_each
from ..store.redis.server import is_lost_connection, is_server_or_memory_error
from ..transport.deliveries import Delivery
from .outcomes import exception_of, info_of
from .stopping import is_stopping

logger = one_line_each(get_logger(__name__))


def settle(
    delivery: Delivery, settlement: Callable[..., DeadJob | None], why: str, *args: Any
) -> DeadJob | None:
    """Settle a job by ``settlement``, a method of ``Settlement``
    (``owner/in_flight/settlement.py``) that gets the lease, ``why`` and ``args``. If the server
    cannot be reached, the maintenance thread calls it later. If it refuses the call, a job that has
    not run is requeued after a pause, without a strike; for one that has run, whose end is to be
    counted, the call is made later. Return the dead job if the job was dead-lettered."""
    end = partial(_end_or_requeue, delivery, settlement, why, *args)
    try:
        return end()
    except (RedisError, OSError) as exc:
        logger.warning(
            "Job %s (%s) could not be requeued or moved yet (%s): it is safe in Redis, in this "
            "worker's private list, until Redis answers. Check Redis.",
            delivery.job.title,
            why,
            exc,
        )
        delivery.owner.deferred_calls.append(end)
        if delivery.lease.runs:
            # Its run has ended. In the prefetch, the job would keep others from being claimed.
            delivery.drop()
        return None


def _end_or_requeue(
    delivery: Delivery, settlement: Callable[..., DeadJob | None], *args: Any
) -> DeadJob | None:
    """Make one try of ``settle``; raise the error after which another one is to follow."""
    try:
        return delivery.end_by(settlement, *args)
    except ResponseError as exc:
        if not delivery.lease.may_start:
            raise
        delivery.requeue_refused(exc)
        return None


def call_back(
    request: Any, callback: Callable[..., object], *args: Any, is_end: bool = True
) -> None:
    """Call a callback of a job's request. If it raises, settle the job and free its slot. In a solo
    pool, whose jobs run in the loop's own thread, a lost connection is raised to the loop, which
    reconnects. A greenlet is not interrupted meanwhile: its job's run is over, so that a time limit
    or a kill comes too late.

    Arguments:
        is_end: the job's run has ended. False: at a soft time limit, after which the job runs on.
    """
    adapter = request.delivery.owner.executor.adapter
    adapter.run_to_end(partial(_call_back, request, partial(callback, *args), is_end))


def _call_back(request: Any, callback: Callable[[], object], is_end: bool) -> None:
    gate = request.delivery.owner.executor
    # A callback may wait long for the result backend. Meanwhile a signal may stop the pool.
    with gate.adapter.reading(False):
        try:
            callback()
        except Exception as raised:
            error = exception_of(info_of(raised))  # a plain one, if ``raised`` cannot be printed
            if gate.inline and is_lost_connection(error):
                raise
            if not is_end:
                logger.error(
                    "Job %s continues without its soft time limit: the limit could not be "
                    "delivered. The traceback follows.",
                    request.title,
                    exc_info=error,
                )
            else:
                _settle_after_error(request, error, kind_of(raised))
        finally:
            if is_end and gate.adapter.ends_by_callback:
                gate.ended(request)


def _settle_after_error(request: Any, error: BaseException, kind: str) -> None:
    """Free the slot of a job whose callback raised ``error``, and recover the job if the callback
    left it unsettled. ``kind`` names the error in the job's history. Raises no ``Exception``."""
    try:
        state.task_ready(request)  # frees the slot in Celery's books
        if request.acknowledged or not request.delivery.is_open:
            logger.error(
                "Job %s was settled (acked, requeued or moved), but a callback of its end failed: "
                "a caller or a monitor may miss its result. Check whether the result backend "
                "answers.",
                request.title,
                exc_info=error,
            )
        else:
            request.acknowledged = True
            _recover(request, error, kind)
    except Exception:
        logger.exception(
            "Job %s could not be requeued: it stays in Redis, in this worker's private list, and "
            "is recovered when the worker ends. Restart the worker.",
            request.title,
        )


def _recover(request: Any, error: BaseException, kind: str) -> None:
    """Recover a job with a strike, so that it is dead-lettered if this happens in each run. It gets
    no strike if the cause is the server, a lack of memory, or the stop of the worker."""
    delivery, app = request.delivery, request.app
    logger.error(
        "Job %s ended, but its outcome could not be recorded: it runs again, up to its strike "
        "limit. Fix the code that raised this error, such as the task's own Request class; the "
        "traceback follows.",
        request.title,
        exc_info=error,
    )
    not_blamed = is_server_or_memory_error(error) or is_stopping(delivery.owner)
    recover = partial(delivery.owner.settlement.recover_or_kill, not_blamed=not_blamed)
    settle(delivery, recover, f"its outcome could not be recorded: {kind}", app, limits_of(app))
