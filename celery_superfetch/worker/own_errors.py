"""Finds out whether a worker ends by an error, and not because it was told to ("Unrecoverable
error" in Celery's log). Then its exit code is a failure; and if one of the jobs that it runs may
have caused the error, they are recovered with a strike, as if the worker had been killed.

``steps.Maintenance.close`` calls both functions, in the main thread, as the worker begins to stop.
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
from .outcomes import exception_of, info_of
from .stopping import process_ends
from .unreceivable import is_trouble

logger = one_line_each(get_logger(__name__))


def fails_by_itself(worker: Any) -> bool:
    """Return whether ``worker`` stops because of an error that one of its running jobs may have
    caused, and log that.

    The bootstep's ``close`` calls this while Celery handles the error (``sys.exc_info``). If such a
    worker counted as one that was told to stop, no job would get a strike, and a job that ends each
    of its workers in this way would end one after another. An error of the server, of memory or of
    the gate, and an order to stop, blame no job.
    """
    raised = sys.exc_info()[1]
    if not isinstance(raised, Exception) or process_ends():
        return False  # told to stop: by a signal, a command, WorkerShutdown
    error = exception_of(info_of(raised))
    is_fault_of_server = is_trouble(error) or isinstance(error, OperationalError)
    is_fault_of_worker = isinstance(error, MemoryError) or raised is worker.superfetch_gate.failure
    if is_fault_of_server or is_fault_of_worker:
        return False
    logger.error(
        "This worker ends by an error of its own: %s. Jobs that it still runs when its process is "
        "gone are recovered with a strike. Report the error, with its traceback.",
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
        "This worker ends by an error: %s. Its running jobs are cut short and requeued; its exit "
        "code is %d. If files or connections are too many, raise the limit of open files "
        "(LimitNOFILE, ulimit -n) or find what keeps them open (lsof -p %d).",
        describe(raised.__cause__),
        EX_FAILURE,
        os.getpid(),
    )
