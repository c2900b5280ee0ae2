"""A worker that ends by an error of its own: Celery's "Unrecoverable error"."""

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
    """Return whether ``worker`` stops because of an error that a job which it runs may have caused;
    called while Celery handles that error. A worker that was told to stop blames no job: a job that
    ends each of its workers in this way would otherwise end one after another."""
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
