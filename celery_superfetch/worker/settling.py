"""Calls the callbacks of a job's request in the worker when the pool reports the job's start or
end. If a callback raises, the job is settled all the same, and its slot in the worker becomes free.

``LeasedRequest`` calls each callback of the pool through ``call_back``: in the worker's loop
(prefork, solo), or in the thread or greenlet that ran the job. ``in_process`` calls it for a task
that stops its worker. If the worker dies before the job is settled, the job is in the private list
and is recovered.

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

from ..app.guard import limits_of
from ..model.foreign import kind_of
from ..model.log_text import one_line_each
from .outcomes import exception_of, info_of
from .stopping import told_to_stop
from .unreceivable import is_trouble, settle

logger = one_line_each(get_logger(__name__))


def call_back(
    request: Any, inline: bool, callback: Callable[..., object], *args: Any, **kwargs: Any
) -> None:
    """Call a callback of the pool; if it raises, settle its job and free its slot.

    Arguments:
        inline: jobs run in the loop's own thread (solo pool). There an error of the server is
            raised to the loop, which reconnects.
    """
    try:
        callback(*args, **kwargs)
    except Exception as raised:
        error = exception_of(info_of(raised))  # or a plain one, if a log could not print that
        if inline and is_trouble(error):
            raise
        if kwargs.get("soft"):  # the only callback after which the job runs on
            logger.error(
                "Job %s got no soft time limit: it runs on.", request.title, exc_info=error
            )
        else:
            _settle_after_error(request, error, kind_of(raised))


def _settle_after_error(request: Any, error: BaseException, kind: str) -> None:
    """Free the slot of a job whose callback raised ``error``, and recover the job if the callback
    left it unsettled. ``kind``: the error as a reason. Raises no ``Exception``."""
    try:
        state.task_ready(request)  # frees the slot in Celery's books
        if request.acknowledged or not request.delivery.is_open:
            logger.error(
                "Job %s is settled, but a callback of its end failed: a caller or a monitor "
                "that waits for its result may not hear of it. See whether the result backend "
                "answers.",
                request.title,
                exc_info=error,
            )
        else:
            request.acknowledged = True
            _recover(request, error, kind)
    except Exception:
        logger.exception(
            "Job %s could not be requeued: it stays in this worker's private list, and is "
            "recovered when the worker ends. Restart the worker.",
            request.title,
        )


def _recover(request: Any, error: BaseException, kind: str) -> None:
    """Recover a job with a strike, so that it is dead-lettered if this happens in each run. Without
    one if the cause is the server, a lack of memory, or the stop of the worker."""
    delivery, app = request.delivery, request.app
    logger.error(
        "Job %s ended, but could not be settled. Its slot is free, and it runs again, up to "
        "its strike limit. Fix its request class, or what else raised this error.",
        request.title,
        exc_info=error,
    )
    is_fault_of_worker = is_trouble(error) or isinstance(error, MemoryError)
    excused = is_fault_of_worker or told_to_stop(delivery.owner)
    recover = partial(delivery.owner.settlement.recover_or_kill, excused=excused)
    settle(delivery, recover, f"it could not be settled: {kind}", app, limits_of(app))
