"""Runs a job in the worker's own process (threads, greenlets, solo pool), and lets the job fail if
Celery's code around its body raises. A thread or a greenlet would swallow that error, and the job
would stay in flight; in a solo pool the worker would end by it.

The pool calls ``run_in_worker`` for each job, in the job's thread or greenlet. If the worker dies
meanwhile, the job is in the private list, recorded as running: the reaper recovers it with a
strike.
"""

from __future__ import annotations

from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.utils.log import get_logger

from ..model.log_text import one_line_each
from .outcomes import exception_of, info_of
from .run_job import run_job
from .settling import call_back
from .unreceivable import is_trouble

logger = one_line_each(get_logger(__name__))

#: Exceptions by which a task stops its worker. Celery lets them through. If the job were not
#: settled here, the worker would requeue it without a strike as it stops, and the job would stop
#: the next worker.
ENDS_OF_WORKERS = WorkerShutdown, WorkerTerminate


def run_in_worker(request: Any, is_inline: bool, *job: Any) -> Any:
    """Run a job in the worker's own process, and return its outcome: an ``ExceptionInfo`` if
    Celery's code around the body raised an error, with which ``LeasedRequest.on_outcome`` then
    fails the job.

    Arguments:
        is_inline: a solo pool: there an error of the result backend's server is raised, for which
            the worker's loop reconnects.
        job: the arguments of ``run_job``.
    """
    try:
        return run_job(*job)
    except ENDS_OF_WORKERS as exc:
        # At a cold shutdown ``LeasedRequest.cancel`` raises the same on top of a solo pool's job,
        # and has ended the run already.
        if not request.is_cancelled:
            call_back(request, is_inline, request.on_failure, info_of(exc))
        raise
    except Exception as exc:
        info = info_of(exc)
        error = exception_of(info)
        if is_inline and is_trouble(error):
            raise
        logger.error(
            "Celery failed around the body of job %s: the job has failed.",
            request.id,
            exc_info=error,
        )
        return info
