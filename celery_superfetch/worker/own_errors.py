"""Finds out whether a worker ends by an error ("Unrecoverable error" in Celery's log), and not
because it was told to stop.

If one of its running jobs may have caused the error, the owner is marked as *failing*: the jobs
that still run at its end stay in the private list, and the reaper of another worker (or of the next
one) recovers them with a strike, as after a ``kill -9``. And if the process has no file descriptor
left, Celery would report success: then the exit code is set to a failure.

``bootsteps.Maintenance.close`` calls both functions, in the main thread, as the worker begins to
stop. If the process is killed meanwhile, its running jobs get a strike as well.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from ..model.foreign import describe
from ..model.log_text import one_line_each
from ..store.redis.server import is_server_or_memory_error
from .outcomes import exception_of, info_of
from .stopping import process_ends

logger = one_line_each(get_logger(__name__))


def job_may_have_ended_worker(worker: Any) -> bool:
    """Return whether ``worker`` stops because of an error that one of its running jobs may have
    caused, and log that.

    The bootstep's ``close`` calls this while Celery handles the error (``sys.exc_info``). If such a
    worker counted as one that was told to stop, its jobs would get no strike, and a job that raises
    this error in each worker would end one worker after another. No job is to blame for an error of
    the server, for a lack of memory, for an error that the gate has raised (``failure``), or for an
    order to stop.
    """
    raised = sys.exc_info()[1]
    if not isinstance(raised, Exception) or process_ends():
        return False  # told to stop: by a signal, a command, WorkerShutdown
    error = exception_of(info_of(raised))  # a plain one, if it cannot be printed
    is_of_server_or_memory = is_server_or_memory_error(error) or isinstance(error, OperationalError)
    is_of_gate = raised is worker.superfetch_gate.failure
    if is_of_server_or_memory or is_of_gate:
        return False
    logger.error(
        "This worker stops because of an internal error: %s. Jobs that are still running when "
        "its process ends are recovered with a strike. Report the error with its traceback.",
        describe(raised),
    )
    return True


def exit_with_failure(worker: Any) -> None:
    """Set a failure as the exit code of a ``worker`` that ends by an error.

    The bootstep's ``close`` calls this while Celery handles the error (``sys.exc_info``). If the
    process has no file descriptor left, Celery's consumer raises ``WorkerTerminate`` because of
    that ``OSError``, and Celery takes it for an order to stop: the exit code would be 0, and a
    supervisor that restarts workers only on failure (systemd's ``Restart=on-failure``, Kubernetes'
    ``OnFailure``) would leave the host without a worker.
    """
    raised = sys.exc_info()[1]
    if not isinstance(raised, WorkerTerminate) or not isinstance(raised.__cause__, Exception):
        return
    worker.exitcode = EX_FAILURE
    logger.error(
        "This worker stops because of an error: %s. Its running jobs are cut short and requeued "
        "(exitcode=%d). If it has too many open files or connections, raise LimitNOFILE (ulimit "
        "-n), or see what keeps them open: lsof -p %d.",
        describe(raised.__cause__),
        EX_FAILURE,
        os.getpid(),
    )
