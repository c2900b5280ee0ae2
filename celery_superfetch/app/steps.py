"""What Celery sends because a job ends: its retry, the next link of its chain, callbacks, errbacks,
the body of its chord. Each is handed on once, by whoever has the job; and while it cannot be sent,
the job is not done."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from inspect import currentframe
from types import FrameType
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app, states
from celery.app import trace
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from celery.exceptions import Ignore, Reject
from celery.utils.log import get_logger
from kombu.serialization import loads

from ..model.job import EARLIER, Counters
from ..model.step import ITSELF, STEP, Claim, Fenced, Run, Step, handing, running

logger = get_logger(__name__)

PAUSE = 1.0  # seconds between two tries to send the body of a chord
CHORD = "on_chord_part_return"  # Celery's functions that send such a message, or lead to one
SENDERS = {"retry", "replace", "on_error", CHORD}
#: Headers that Celery does not take for the user's.
OF_CELERY = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}


class NotSent(BaseException):
    """Of an ``Exception`` Celery would make a stored failure, or the end of the job."""


class Counted(BaseException):
    """A job that had succeeded before is done, and does not run again."""


def run(claim: Claim, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the pool's own process; one that is not done goes back to its queue. ``target``
    is one of Celery's tracers, or somebody else's, of which nothing is known."""
    token = running.set(None)
    try:
        if target in (trace.trace_task_ret, trace.fast_trace_task):
            kwargs = _begin(claim, *args, **kwargs)
        return target(*args, **kwargs)
    except NotSent as exc:
        logger.warning("%s: it goes back to its queue, and runs again.", exc)
        return _ended_by(Reject(str(exc), requeue=True), exc)
    except Fenced as exc:
        logger.warning("%s", exc)
        return _ended_by(Ignore(str(exc)), exc)
    except Counted:
        return 0, None, 0.0
    finally:
        running.reset(token)


def _ended_by(word: Exception, exc: BaseException) -> Any:
    return 1, ExceptionInfo((type(word), word, exc.__traceback__)), 0.0  # as Celery's tracer


def _begin(claim: Claim, name: str, id: str, request: Any, *message: Any, **kwargs: Any) -> Any:
    """Tell a job of its claim, and learn what it has to hand on; what its tracer is called with."""
    title = f"{name}[{id}]"
    if claim.is_over:
        raise Fenced(
            f"Job {title} does not run again: an earlier run has sent its retry, or what replaces "
            "it, and was cut short after that"
        )
    if request.get("headers") is None:  # Celery would take ours for the user's
        request["headers"] = {k: v for k, v in request.items() if k not in OF_CELERY}
    earlier = request.get(EARLIER) or Counters().told(0)
    request[EARLIER] = {**earlier, "token": claim.token}
    if not claim.id:
        return kwargs
    one = Run(claim, id, title)
    running.set(one)

    def read(embed: Any) -> None:
        one.read(embed, id)
        _complete(name, id, {**request, **(embed or {})})

    body, content_type, *_ = message
    if not content_type:  # protocol 1, which was decoded before
        read(body[2])
        return kwargs

    def load(*args: Any, **how: Any) -> Any:
        loaded = loads(*args, **how)
        read(loaded[2])
        return loaded

    return {**kwargs, "loads": load}


def _complete(name: str, id: str, request: dict[str, Any]) -> None:
    """``worker_deduplicate_successful_tasks`` skips a job that has a result; it may have ended
    before it counted in its chord."""
    if not (request.get("chord") and request["delivery_info"].get("redelivered")):
        return
    task = (trace._localized[0] if trace._localized else current_app.tasks)[name]
    if not task.app.conf.worker_deduplicate_successful_tasks:
        return
    backend = task.backend
    # Only where a part counts once is it safe to count it again.
    if not isinstance(backend, RedisBackend) or backend.get_state(id) != states.SUCCESS:
        return
    backend.on_chord_part_return(Context(request), states.SUCCESS, backend.get_result(id))
    raise Counted


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    def send_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        token = handing.set(_step_of(message))
        try:
            return _send(partial(send, producer, name, message, **options), producer, name)
        finally:
            handing.reset(token)

    return send_message


def _step_of(message: Any) -> Step | None:
    """What a message is to the job that sends it; None: it is no step."""
    one = running.get()
    if one is None:
        return None
    headers, body = message.headers, message.body  # before protocol 2 the body says it
    facts = headers if "task" in headers else body
    id, kind = facts["id"], STEP
    if id == one.task_id:
        caller = _caller()
        if caller is None:
            return None  # a task that calls itself once more may do so
        if caller.f_locals.get("throw", True):
            kind = ITSELF
    elif not one.names(id):
        return None
    return Step(one.claim, one.title, id, facts["task"], facts["retries"], kind, one.earlier)


def _caller() -> FrameType | None:
    """Celery's function by which a task sends itself."""
    frame = currentframe()
    while frame is not None and frame.f_code is not run.__code__:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if module == "celery.app.task" and code.co_name in ("retry", "replace"):
            return frame
        frame = frame.f_back
    return None


def _send(send: Callable[[], Any], producer: Any, name: str) -> Any:
    while True:
        try:
            return send()
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


def _ended() -> tuple[Any, set[str]]:
    """The task whose end sends a message, and who of Celery leads to it. None for what its body
    sends, which hears of the error, outside a job, and for one that was acked before it ran."""
    frame, callers, task, state = currentframe(), set(), None, None
    while frame is not None and frame.f_code is not run.__code__:
        if str(frame.f_globals.get("__name__")).startswith("celery."):
            callers.add(name := frame.f_code.co_name)
            if name == "trace_task":  # its state is None until the body has ended
                task, state = frame.f_locals["task"], frame.f_locals.get("state", state)
        frame = frame.f_back
    ended = frame and task and task.acks_late and (state or callers & SENDERS)
    return task if ended else None, callers
