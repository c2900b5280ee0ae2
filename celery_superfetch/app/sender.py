"""Publishes tasks: finds out whether Celery sends a message because a job ends, which makes it a
step, and keeps the job from being done while a step cannot be sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from inspect import currentframe
from types import CodeType, FrameType
from typing import Any, NamedTuple

from celery import canvas
from celery.utils.log import get_logger
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from ..model.step import Run, Step, handing, ids_of, running
from ..store.wire.server import is_passing
from .refusals import PAUSE_S, NotSent

logger = get_logger(__name__)

#: Tries of a retry that is sent at the end of its run, and the pause between them (s): as often as
#: Celery itself tries to publish.
TRIES, BETWEEN_S = 4, 0.2
AWAY = ConnectionError, TimeoutError, OSError

TRACE, TASK, CHORD = "celery.app.trace", "celery.app.task", "on_chord_part_return"
CANVAS, ANNOUNCEMENT = canvas.__file__, "celery_superfetch.app.announcement"

#: Functions that decide who sends a message -> their module.
DECIDE = {
    "run": "celery_superfetch.app.steps",  # the job begins here: nothing above belongs to it
    "trace_task": TRACE,
    "handle_failure": TRACE,
    "handle_retry": TRACE,
    "retry": TASK,
    "replace": TASK,
    "send": "celery.utils.dispatch.signal",  # to the receivers of a signal
    "__call__": "celery.canvas",  # an errback that is called in place
    "_complete": "celery_superfetch.app.steps",
    "_tell_caller": ANNOUNCEMENT,
    "_receivers": ANNOUNCEMENT,
}

#: Functions of this package that publish what follows a job: one that is not traced again since it
#: has its result, and one that was dead-lettered.
OURS = {"_complete", "_tell_caller"}

#: What Celery's tracer calls to publish what follows a job. All else that it calls belongs to the
#: user: the body, hooks and receivers.
ENDS = {"_dispatch_callbacks_and_chain", "mark_as_done", "mark_as_failure", "on_error"}


class Origin(NamedTuple):
    """Who sends a message, as the frames above it show. By default the user, by hand."""

    of_end: bool = False  # Celery, because the job ends
    itself: FrameType | None = None  # that of retry() or replace(), by which a task sends itself
    ended: bool = False  # the body has ended: no code of the user's hears of an error
    completes: bool = False  # the message follows from the count of a chord


def origin() -> Origin:
    """Find out who sends the message that is sent just now. The innermost function decides, since
    Celery calls receivers, hooks and errbacks in the midst of a job's end; but what a body runs in
    place (``apply()``) has an end of its own, which is not that of the job."""
    frame, below = currentframe(), None  # type: FrameType | None, CodeType | None
    found: Origin | None = None
    ended = completes = False
    while frame is not None:
        code = frame.f_code
        name = code.co_name
        if name == CHORD:
            completes = True
        elif name in DECIDE and frame.f_globals.get("__name__") == DECIDE[name]:
            if name == "run":
                return (found or Origin())._replace(ended=ended, completes=completes)
            if name == "trace_task":
                if "state" in code.co_varnames:  # else what calls the tracer has its name
                    state = frame.f_locals.get("state")  # None until the body has ended
                    ended = state is not None or _is_end(below)
                    if not (_is_end(below) or (ended and _publishes(below))):
                        found = Origin(itself=found and found.itself)
                    elif found is None:
                        found = Origin(of_end=True)
            elif found is None:
                found = _decided(frame, below)
                if name in OURS and found.of_end:
                    return found._replace(ended=name == "_complete", completes=completes)
        below, frame = code, frame.f_back
    return Origin()  # in another thread than the job's


def _is_end(below: CodeType | None) -> bool:
    return below is not None and below.co_name in ENDS


def _publishes(below: CodeType | None) -> bool:
    """Whether the tracer publishes callbacks by itself, as before Celery 5.6."""
    return below is not None and below.co_name == "apply_async" and below.co_filename == CANVAS


def _decided(frame: FrameType, below: CodeType | None) -> Origin:
    name = frame.f_code.co_name
    if name in ("retry", "replace"):
        return Origin(itself=frame)
    return Origin(of_end=name in OURS or (name == "handle_failure" and _is_end(below)))


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function by which Celery's AMQP publishes tasks."""

    def send_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        job = running.get()
        if job is None:
            return send(producer, name, message, **options)
        by, sending = origin(), handing.get()
        if not (by.ended or (sending and sending.is_itself)):
            release(job)  # the body has caught ``Retry`` and goes on
        token = handing.set(_step_of(job, message, by))
        try:
            call = partial(send, producer, name, message, **options)
            return _send(job, by, call, producer, name)
        finally:
            handing.reset(token)

    return send_message


def _step_of(job: Run, message: Any, by: Origin) -> Step | None:
    """What a message is to the job that sends it; None: it is no step."""
    if not (by.of_end or by.itself):
        return None
    # Before protocol 2 the body says it.
    is_v2 = "task" in message.headers
    facts, embed = (message.headers, message.body[2]) if is_v2 else (message.body, message.body)
    id, task = facts["id"], facts["task"]
    chord = embed.get("chord") and (facts.get("group") or facts.get("taskset"))
    if by.itself is None:
        return job.step(id, task, chord, of_end=True)
    if id != job.task_id and not _leads(by.itself, id, chord, job):
        return None
    throws = bool(by.itself.f_locals.get("throw", True))
    return job.step(id, task, of_end=False, is_itself=throws)


def _leads(caller: FrameType, id: str, chord: str | None, job: Run) -> bool:
    """Whether a message is the first link of the chain by which a job is replaced. The parts of a
    chord are many, and each run makes others."""
    return chord in (None, job.group) and id in ids_of(caller.f_locals.get("sig"))


def release(job: Run, *, is_over: bool = False) -> None:
    """Publish the retry that a job holds. NotSent: the server does not take it."""
    for left in range(TRIES, 0, -1):
        try:
            return job.release(is_over=is_over)
        except (RedisError, OSError) as exc:
            if left == 1 or not (isinstance(exc, AWAY) or is_passing(exc)):
                raise NotSent(f"Job {job.title} could not send its retry ({exc})") from exc
            time.sleep(BETWEEN_S)


def _send(job: Run, by: Origin, send: Callable[[], Any], producer: Any, name: str) -> Any:
    while True:
        try:
            return send()
        except Exception as exc:
            lost, cause = producer.connection.recoverable_connection_errors, exc.__cause__ or exc
            # What the server refuses for good would come back for ever.
            if not (isinstance(cause, lost) or is_passing(cause)) or not (by.ended or by.itself):
                raise
            trouble = f"Job {job.title} could not send {name} ({exc})"
            if not by.completes:
                raise NotSent(trouble) from exc
            # Celery forgets a chord when its body could not be sent: no second run would help.
            logger.warning("%s: it is not done, and waits for the server.", trouble)
            time.sleep(PAUSE_S)
