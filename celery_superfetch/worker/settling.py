"""The pool's callbacks for a job: each reaches the request, and the job leaves its slots whatever
the callback raises."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from ..app.guard import limits_of
from ..model.foreign import message_of
from .outcomes import Escaped, Packed, TooLate, exception_of, info_of
from .stopping import told_to_stop
from .unreceivable import is_trouble, settle

logger = get_logger(__name__)


def report(
    succeed: Callable[[Any], object],
    fail: Callable[[Any], object],
    start_again: Callable[[], object],
    outcome: Any,
) -> None:
    """Call the callback that an outcome is meant for."""
    if isinstance(outcome, TooLate):
        start_again()
    elif isinstance(outcome, Escaped):
        fail(outcome.packed.unpack())
    elif isinstance(outcome, tuple) and len(outcome) == 3 and isinstance(outcome[1], Packed):
        succeed((outcome[0], outcome[1].unpack(), outcome[2]))
    else:
        succeed(outcome)


def call_back(
    request: Any, inline: bool, callback: Callable[..., object], *args: Any, **kwargs: Any
) -> None:
    """Call a callback; if it raises, free the slots of its job. ``inline``: jobs run in the thread
    of the loop, which takes a server that is away for a lost connection."""
    try:
        callback(*args, **kwargs)
    except Exception as raised:
        error = exception_of(info_of(raised))  # a plain one, where the log could not print it
        if inline and is_trouble(error):
            raise
        if kwargs.get("soft"):  # the only callback after which the job runs on
            logger.error(
                "Job %s got no soft time limit: it runs on.", request.title, exc_info=error
            )
        else:
            _free_slots(request, error)


def _free_slots(request: Any, error: BaseException) -> None:
    """Requeue a job that its callback left unsettled; never raises."""
    try:
        state.task_ready(request)
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
            _recover(request, error)
    except Exception:
        logger.exception(
            "Job %s could not be requeued: it stays in this worker's private list, and is "
            "recovered when the worker ends. Restart the worker.",
            request.title,
        )


def _recover(request: Any, error: BaseException) -> None:
    """Requeue a job with a strike, so that this has an end; without one where the server, or a lack
    of memory, is the cause."""
    delivery, app = request.delivery, request.app
    logger.error(
        "Job %s ended, but could not be settled. Its slot is free, and it runs again, up to "
        "its strike limit. Fix its request class, or what else raised this error.",
        request.title,
        exc_info=error,
    )
    is_fault_of_worker = is_trouble(error) or isinstance(error, MemoryError)
    excused = is_fault_of_worker or told_to_stop(delivery.owner)
    way = partial(delivery.owner.recover_or_kill, excused=excused)
    settle(delivery, way, f"it could not be settled: {message_of(error)}", app, limits_of(app))
