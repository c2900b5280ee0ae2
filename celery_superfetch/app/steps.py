"""What Celery sends because a job ends: its retry, the next link of its chain, callbacks, errbacks,
the body of its chord. While that cannot be sent, the job is not done."""

from __future__ import annotations

import time
from collections.abc import Callable
from inspect import currentframe
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.exceptions import Reject
from celery.utils.log import get_logger

logger = get_logger(__name__)

PAUSE = 1.0  # seconds between two tries to send the body of a chord
CHORD = "on_chord_part_return"  # Celery's functions that send such a message, or lead to one
SENDERS = {"retry", "replace", "on_error", CHORD}
OF_CHORDS = "celery_superfetch.app.chords"  # which has Celery's function, before 5.7


class NotSent(BaseException):
    """Of an ``Exception`` Celery would make a stored failure, or the end of the job."""


def run(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the pool's own process; one that is not done goes back to its queue."""
    try:
        return target(*args, **kwargs)
    except NotSent as exc:
        logger.warning("%s: it goes back to its queue, and runs again.", exc)
        reject = Reject(str(exc), requeue=True)
        return 1, ExceptionInfo((Reject, reject, exc.__traceback__)), 0.0  # as Celery's tracer


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_message(producer: Any, name: str, *args: Any, **options: Any) -> Any:
        while True:
            try:
                return send(producer, name, *args, **options)
            except Exception as exc:
                lost = producer.connection.recoverable_connection_errors
                task, callers = _ended()
                if task is None or not isinstance(exc.__cause__ or exc, lost):
                    raise  # what the server refuses would come back for ever
                trouble = f"Job {task.name}[{task.request.id}] could not send {name} ({exc})"
                if CHORD not in callers:
                    raise NotSent(trouble) from exc
                # Celery forgets a chord when its body could not be sent: no second run would help.
                logger.warning("%s: it is not done, and waits for the server.", trouble)
                time.sleep(PAUSE)

    return send_message


def _ended() -> tuple[Any, set[str]]:
    """The task whose end sends a message, and who of Celery leads to it. None for what its body
    sends, which hears of the error, outside a job, and for one that was acked before it ran."""
    frame, callers, task, state = currentframe(), set(), None, None
    while frame is not None and frame.f_code is not run.__code__:
        if str(frame.f_globals.get("__name__")).startswith(("celery.", OF_CHORDS)):
            callers.add(name := frame.f_code.co_name)
            if name == "trace_task":  # its state is None until the body has ended
                task, state = frame.f_locals["task"], frame.f_locals.get("state", state)
        frame = frame.f_back
    ended = frame and task and task.acks_late and (state or callers & SENDERS)
    return task if ended else None, callers
