"""Runs a job in the worker's own process (threads, greenlets, solo pool), and lets the job fail if
Celery's code around the task's function raises. A thread or a greenlet would swallow that error,
and the job would stay in flight; in a solo pool the error would end the worker. If user code kills
the job's greenlet, the run counts as lost: the job is recovered with a strike.

The pool calls ``run_in_worker`` for each job, in the job's thread or greenlet:
``pool_adapter.PoolAdapter.call`` gives it to the pool. If the worker dies meanwhile, the job is in
its private list in Redis with a start record, and a reaper recovers it with a strike. With early
ack (``acks_late`` off) the job was settled as it began, and its run is lost, as in stock Celery.
"""

from __future__ import annotations

import sys
from typing import Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.log import get_logger

from ..model.log_text import one_line_each
from ..store.redis.server import is_lost_connection
from .outcomes import exception_of, info_of
from .run_job import run_job
from .settling import call_back

logger = one_line_each(get_logger(__name__))

#: Exceptions by which a task stops its worker; Celery lets them through. If the job were not
#: settled here, the stopping worker would requeue it without a strike, and the job would stop one
#: worker after another.
ENDS_OF_WORKERS = WorkerShutdown, WorkerTerminate


def run_in_worker(request: Any, is_inline: bool, *job: Any) -> Any:
    """Run a job in the worker's own process, and return its outcome. If Celery's code around the
    task's function raises an error, the outcome is an ``ExceptionInfo``, and
    ``LeasedRequest.on_outcome`` lets the job fail with it. If user code has killed the job's
    greenlet, the outcome is a ``WorkerLostError``, and the job is recovered with a strike.

    Arguments:
        is_inline: whether this is a solo pool, where the worker's loop runs the job. Then a lost
            connection (to the result backend, too) is raised: the loop reconnects, and the job is
            requeued.
        job: the arguments of ``run_job``.
    """
    try:
        return run_job(*job)
    except ENDS_OF_WORKERS as exc:
        # At a cold shutdown ``LeasedRequest.cancel`` raises WorkerTerminate in a signal handler,
        # within a solo pool's job; it has ended the run already.
        if not request.is_cancelled:
            call_back(request, request.on_failure, info_of(exc))
        raise
    except Exception as exc:
        info = info_of(exc)
        error = exception_of(info)
        if is_inline and is_lost_connection(error):
            raise
        logger.error(
            "Job %s has failed: Celery raised an error outside the task's own code. The "
            "traceback follows.",
            request.title,
            exc_info=error,
        )
        return info
    except BaseException as exc:
        if request.was_ended_by_celery or not _is_greenlet_kill(exc):
            raise
        # The task, or a watchdog in it, has killed the job's greenlet. Celery takes that for its
        # own kill, and for a success: the ack would lose the job, without a result or a log line.
        try:
            raise WorkerLostError("The greenlet of the job was killed")
        except WorkerLostError as lost:  # its context is ``exc``
            return info_of(lost)


def _is_greenlet_kill(error: BaseException) -> bool:
    """Return whether an exception is the one by which a greenlet is killed."""
    greenlet: Any = sys.modules.get("greenlet")  # need not be installed
    return greenlet is not None and isinstance(error, greenlet.GreenletExit)
