"""Decides whether a worker that ends by an error ("Unrecoverable error" in Celery's log) may blame
the jobs that it runs: then they are recovered with a strike, as if it had been killed."""

from __future__ import annotations

import sys
from typing import Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from ..model.foreign import describe
from .outcomes import exception_of, info_of
from .stopping import process_ends
from .unreceivable import is_trouble

logger = get_logger(__name__)


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
