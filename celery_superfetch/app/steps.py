"""What Celery sends because a job ends: its retry, the next link of its chain, callbacks, errbacks,
the body of its chord. Each is handed on once, by whoever has the job; and while it cannot be sent,
the job is not done."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import currentframe
from types import FrameType
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app, states
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import Ignore, Reject
from celery.utils.log import get_logger
from kombu.serialization import loads

from ..model.job import DELIVERY, Counters
from ..model.step import ITSELF, STEP, Claim, Fenced, Run, Step, handing, ids_of, running
from .chords import is_on_redis
from .ignored_results import ignores_result

logger = get_logger(__name__)

PAUSE = 1.0  # seconds between two tries to send the body of a chord
CHORD = "on_chord_part_return"  # Celery's functions that send such a message, or lead to one
SENDERS = {"retry", "replace", "on_error", CHORD}
#: Headers that Celery does not take for the user's.
OF_CELERY = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
FIRST_RUN = Counters().as_header(0)
OF_CHORDS = "celery_superfetch.app.chords"  # which has Celery's function, before 5.7


class NotSent(BaseException):
    """Of an ``Exception`` Celery would make a stored failure, or the end of the job."""


class Completed(BaseException):
    """A job that had succeeded before is done, and does not run again."""


def run(claim: Claim, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the pool's own process; one that is not done goes back to its queue. ``target``
    is one of Celery's tracers, or somebody else's, of which nothing is known."""
    token = running.set(None)
    try:
        if is_tracer(target):
            try:
                kwargs = _begin(claim, *args, **kwargs)
            except Exception:  # a thread or a greenlet would swallow it
                return 1, ExceptionInfo(internal=True), 0.0
        return target(*args, **kwargs)
    except NotSent as exc:
        logger.warning("%s: it goes back to its queue, and runs again.", exc)
        return _ended_by(Reject(str(exc), requeue=True), exc)
    except Fenced as exc:
        logger.warning("%s", exc)
        return _ended_by(Ignore(str(exc)), exc)
    except Completed:
        return 0, None, 0.0
    finally:
        running.reset(token)


def is_tracer(target: Callable[..., Any]) -> bool:
    return getattr(target, "__wrapped__", target) in (trace.trace_task_ret, trace.fast_trace_task)


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
    counters = request.get(DELIVERY)
    task = (trace._localized[0] if trace._localized else current_app.tasks)[name]
    ended = bool(claim.steps) or (bool(counters) and _result_of(task, id, request) is not None)
    request[DELIVERY] = {**(counters or FIRST_RUN), "ended": ended, "token": claim.token}
    if claim.id:
        running.set(Run(claim, id, title, request.get("group")))

    def read(embed: Any) -> None:
        if job := running.get():
            job.read(embed, id)
        if ended:
            _complete(task, id, {**request, **(embed or {})})

    body, content_type, *_ = message
    if not content_type:  # it was decoded before, as protocol 1 always is
        read(body[2])
        return kwargs

    def load(*args: Any, **how: Any) -> Any:
        loaded = loads(*args, **how)
        read(loaded[2])
        return loaded

    return {**kwargs, "loads": load}


def _result_of(task: Any, id: str, request: Any) -> Any:
    """What the result backend has of a job that has ended; None where it cannot say."""
    backend = task.backend
    # Whoever asks rpc:// takes what it has.
    if ignores_result(task, Context(request)) or not backend.persistent:
        return None
    with suppress(Exception):
        meta = backend.get_task_meta(id)
        if meta["status"] in states.READY_STATES:
            return meta
    return None


def _complete(task: Any, id: str, request: dict[str, Any]) -> None:
    """``worker_deduplicate_successful_tasks`` skips a job that has a result; it may have ended
    before it counted in its chord."""
    if not (request.get("chord") and task.app.conf.worker_deduplicate_successful_tasks):
        return
    result = _result_of(task, id, request)
    # Only where a part counts once is it safe to count it again.
    if result and result["status"] == states.SUCCESS and is_on_redis(task.backend):
        task.backend.on_chord_part_return(Context(request), states.SUCCESS, result["result"])
        raise Completed


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
    job = running.get()
    if job is None:
        return None
    # Before protocol 2 the body says it.
    is_v2 = "task" in message.headers
    facts, embed = (message.headers, message.body[2]) if is_v2 else (message.body, message.body)
    id, name, kind = facts["id"], facts["task"], STEP
    # Those that come with another chord are others: what it counts is not complete without them.
    chord = embed.get("chord") and (facts.get("group") or facts.get("taskset"))
    key = id
    if id not in job.ids:
        caller = _caller()
        if caller is None or not (id == job.task_id or _leads(caller, id, chord, job)):
            return None
        key = job.task_id
        if caller.f_locals.get("throw", True):
            kind = ITSELF
    # Of a signature that stands twice in one group, only its index tells one job from the other.
    marks = key, chord, facts.get("group_index"), facts["retries"]
    return Step(job.claim, job.title, id, name, marks, kind, job.earlier)


def _caller() -> FrameType | None:
    """Celery's function by which a task sends itself: one that just calls itself may do so."""
    frame = currentframe()
    while frame is not None and frame.f_code is not run.__code__:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        if module == "celery.app.task" and code.co_name in ("retry", "replace"):
            return frame
        frame = frame.f_back
    return None


def _leads(caller: FrameType, id: str, chord: str | None, job: Run) -> bool:
    """Whether a message is the first link of the chain by which a job is replaced. The parts of a
    chord are many, and each run makes others."""
    return id in ids_of(caller.f_locals.get("sig")) and chord in (None, job.group)


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
        if str(frame.f_globals.get("__name__")).startswith(("celery.", OF_CHORDS)):
            callers.add(name := frame.f_code.co_name)
            if name == "trace_task":  # its state is None until the body has ended
                task, state = frame.f_locals["task"], frame.f_locals.get("state", state)
        frame = frame.f_back
    ended = frame and task and task.acks_late and (state or callers & SENDERS)
    return task if ended else None, callers
