"""Wraps Celery's ``send_task_message`` in each process of an installed app.

While a job runs, each message that the process sends is examined: is it a *step*, which Celery
sends because the job ends (a callback, the next link of a chain, a chord's body, a retry), or did
user code send it? A step is announced to the transport, which publishes it once, however often the
job runs. If the server does not take a step, the job does not end: it goes back to its queue
(``NotSent``), since an ack would lose the step.

If the process dies between two steps, the job is recovered and its next run publishes the rest: the
steps note in the owner's private list says which steps are on their queues (``step.lua``).
"""

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

from ..model.log_text import one_line_each
from ..model.step import Run, Step, handing, ids_of, running
from ..store.wire.server import is_passing
from .refusals import PAUSE_S, NotSent

logger = one_line_each(get_logger(__name__))

#: How often the retry that a run holds is sent, as often as Celery itself tries to publish.
TRIES = 4
BETWEEN_S = 0.2  # between two of these tries
#: Errors of a server that cannot be reached.
AWAY = ConnectionError, TimeoutError, OSError

TRACE, TASK, CHORD = "celery.app.trace", "celery.app.task", "on_chord_part_return"
CANVAS, ANNOUNCEMENT = canvas.__file__, "celery_superfetch.app.announcement"

#: Name of a function -> its module: in the stack above a message, the innermost of these functions
#: says who sends it. If one of ours gets another name, its steps are published on each run.
DECIDE = {
    "run": "celery_superfetch.app.steps",  # the job begins in it: its callers say nothing
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

#: Functions of this package that publish what follows a job outside Celery's tracer: of a job that
#: has its result already, and of one that was dead-lettered.
OURS = {"_complete", "_tell_caller"}

#: Functions that Celery's tracer calls to publish what follows a job. All else that it calls is
#: user code: the body, hooks and receivers.
ENDS = {"_dispatch_callbacks_and_chain", "mark_as_done", "mark_as_failure", "on_error"}


class Origin(NamedTuple):
    """Sender of a message, as the stack above it shows; by default user code."""

    of_end: bool = False  # Celery sends it because the job ends
    itself: FrameType | None = None  # frame of retry() or replace(), by which a task sends itself
    ended: bool = False  # the body has ended: no user code could catch an error of the sending
    completes: bool = False  # Celery sends it because a chord is complete (or has failed)


def origin() -> Origin:
    """Find out from the stack who sends the current message.

    The innermost function of ``DECIDE`` says it, since Celery calls receivers, hooks and errbacks,
    which may send messages by hand, in the midst of a job's end. But a task that the body runs in
    place (``apply()``) has a tracer of its own, whose end is not that of the job.
    """
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
                if "state" in code.co_varnames:  # else it is the tracer's caller, of the same name
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
    return Origin()  # no ``run`` above: the user's code sends it in a thread of its own


def _is_end(below: CodeType | None) -> bool:
    return below is not None and below.co_name in ENDS


def _publishes(below: CodeType | None) -> bool:
    """Return whether the tracer itself sends a callback; before Celery 5.6 it does."""
    return below is not None and below.co_name == "apply_async" and below.co_filename == CANVAS


def _decided(frame: FrameType, below: CodeType | None) -> Origin:
    """Return what a function of ``DECIDE`` says of the sender; ``below``: the function it
    called."""
    name = frame.f_code.co_name
    if name in ("retry", "replace"):
        return Origin(itself=frame)
    return Origin(of_end=name in OURS or (name == "handle_failure" and _is_end(below)))


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function by which Celery's AMQP publishes tasks. The wrapper raises NotSent where
    the server does not take a step, and else what ``send`` raises."""

    def send_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        job = running.get()
        if job is None:
            return send(producer, name, message, **options)
        by, sending = origin(), handing.get()
        if not (by.ended or (sending and sending.is_itself)):
            release(job)  # the body has caught ``Retry`` and continues: the retry is not the end
        token = handing.set(_step_of(job, message, by))
        try:
            call = partial(send, producer, name, message, **options)
            return _send(job, by, call, producer, name)
        finally:
            handing.reset(token)

    return send_message


def _step_of(job: Run, message: Any, by: Origin) -> Step | None:
    """Return the step that a message is; None: it is no step."""
    if not (by.of_end or by.itself):
        return None
    # In protocol 1 the body has these fields.
    is_v2 = "task" in message.headers
    facts, embed = (message.headers, message.body[2]) if is_v2 else (message.body, message.body)
    id, task = facts["id"], facts["task"]
    chord = embed.get("chord") and (facts.get("group") or facts.get("taskset"))
    if by.itself is None:
        return job.step(id, task, chord, of_end=True)
    if id != job.task_id and not _is_first_link(by.itself, id, chord, job):
        return None
    throws = bool(by.itself.f_locals.get("throw", True))
    return job.step(id, task, of_end=False, is_itself=throws)


def _is_first_link(replace: FrameType, id: str, chord: str | None, job: Run) -> bool:
    """Return whether a message is the first link of the chain by which replace() replaces a job.
    The parts of a chord are no steps: they are many, and each run makes others."""
    return chord in (None, job.group) and id in ids_of(replace.f_locals.get("sig"))


def release(job: Run, *, is_over: bool = False) -> None:
    """Publish the retry (or the replacement) that a run holds, if there is one.

    Arguments:
        is_over: the run has ended with it: the job does not run again if it is recovered.

    Raises:
        NotSent: the server does not take it.
        Fenced: the claim is over.
    """
    for left in range(TRIES, 0, -1):
        try:
            return job.release(is_over=is_over)
        except (RedisError, OSError) as exc:
            if left == 1 or not (isinstance(exc, AWAY) or is_passing(exc)):
                raise NotSent(f"Job {job.title} could not send its retry ({exc})") from exc
            time.sleep(BETWEEN_S)


def _send(job: Run, by: Origin, send: Callable[[], Any], producer: Any, name: str) -> Any:
    """Send a message. Where the server is away, or refuses it for a while, and the job would end
    without the message: raise NotSent, or try again, without a limit, if it completes a chord."""
    while True:
        try:
            return send()
        except Exception as exc:
            lost, cause = producer.connection.recoverable_connection_errors, exc.__cause__ or exc
            # If a job went back for what the server refuses for good, it would run for ever.
            if not (isinstance(cause, lost) or is_passing(cause)) or not (by.ended or by.itself):
                raise
            trouble = f"Job {job.title} could not send {name} ({exc})"
            if not by.completes:
                raise NotSent(trouble) from exc
            # If sending the body raises, Celery deletes the chord, and no later run can complete
            # it.
            logger.warning("%s: it is not done, and waits for the server.", trouble)
            time.sleep(PAUSE_S)
