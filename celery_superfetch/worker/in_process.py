"""Pools that run jobs in the worker's own process (threads, greenlets, solo): settles jobs for
which Celery's code around the body raises. A thread or a greenlet would swallow that error, and the
job stay in flight; in a solo pool the worker would end by it. The pool calls this for each job."""

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

#: Exceptions by which a task stops its worker. Celery lets them through; if the job stayed in
#: flight until the worker has ended, it would be requeued without a strike, and end worker after
#: worker.
ENDS_OF_WORKERS = WorkerShutdown, WorkerTerminate


def run_in_worker(request: Any, is_inline: bool, *job: Any) -> Any:
    """Run a job in the worker's own process, and return its outcome: an ``ExceptionInfo`` if
    Celery's code around the body raised an error, for which the job is to fail.

    Arguments:
        is_inline: a solo pool: there an error of the result backend's server is raised, for which
            the worker's loop reconnects.
        job: the arguments of ``run_job``.
    """
    try:
        return run_job(*job)
    except ENDS_OF_WORKERS as exc:
        # A cold shutdown raises the same on top of a solo pool's job, which it has cut short.
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
