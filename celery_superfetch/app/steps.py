"""Runs a job in the pool's own process: tells it of its claim and of what it has to publish for its
end, and ends the run by how that went."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app, states
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger
from kombu.serialization import loads

from ..model.job import DELIVERY, Counters
from ..model.step import Claim, Fenced, Run, running, seed_of
from .chords import is_on_redis
from .ignored_results import ignores_result
from .refusals import NotSent
from .sender import release

logger = get_logger(__name__)

#: Headers that Celery does not take for the user's.
OF_CELERY = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
FIRST_RUN = Counters().as_header(0)
#: Modules that read what follows a job in order to publish it.
PUBLISH = ("celery.app.trace", "celery.backends", "celery_superfetch.app.chords")
SKEW_S = 2.0  # seconds by which the clocks of two workers may differ


class Completed(BaseException):
    """A job that had succeeded before is done, and does not run again."""


def run(claim: Claim, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job in the pool's own process; one that is not done goes back to its queue. ``target``
    is one of Celery's tracers, or somebody else's, of which nothing is known."""
    token = running.set(None)
    try:
        if is_tracer(target):
            # What this raises, Celery's tracer would raise, too: the worker stores and logs it.
            kwargs = _begin(claim, *args, **kwargs)
        try:
            answer = target(*args, **kwargs)
        except Exception:
            _release(None)
            raise
        _release(answer)
        return answer
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


def _release(answer: Any) -> None:
    """Publish the retry that the run holds, or what replaces the job: as its last word if the run
    has ended by ``Retry``, or by the ``Ignore`` of replace(), as its tracer answers."""
    job = running.get()
    if job is None or not job.held:
        return
    failed, error, *_ = answer if isinstance(answer, tuple) else (False, None)
    exc = getattr(error, "exception", None)
    is_over = bool(failed) and isinstance(getattr(exc, "exc", exc), (Retry, Ignore))
    release(job, is_over=is_over)


def _following(name: str) -> property:
    """What follows a job, for ``RunContext``."""

    def get(self: Any) -> Any:
        value, job = vars(self).get(name), running.get()
        if not value or job is None or self.is_eager or self.id != job.task_id:
            return value
        reader = sys._getframe(1).f_globals.get("__name__", "")
        return job.followers(name, value) if reader.startswith(PUBLISH) else value

    def put(self: Any, value: Any) -> None:
        vars(self)[name] = value

    return property(get, put)


class RunContext(Context):
    """Celery's context of a run. What follows the job has its ids only where Celery publishes it:
    a task that passes a callback on by hand, or with its retry, passes it on without them."""

    callbacks, errbacks, chord, chain = (
        _following(name) for name in ("callbacks", "errbacks", "chord", "chain")
    )


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
    result = (claim.steps or counters) and _result_of(task, id, request)
    ended = bool(claim.steps) or (bool(result) and _is_of_job(result, claim.since))
    request[DELIVERY] = {**(counters or FIRST_RUN), "ended": ended, "token": claim.token}
    if claim.id:
        seed = seed_of(request.get("properties") or {}, id)
        running.set(Run(claim, id, title, request.get("group"), seed))
        trace.Context = RunContext
    if not result:
        return kwargs

    body, content_type, *_ = message
    if not content_type:  # it was decoded before, as protocol 1 always is
        _complete(task, result, {**request, **(body[2] or {})})
        return kwargs

    def load(*args: Any, **how: Any) -> Any:
        loaded = loads(*args, **how)
        _complete(task, result, {**request, **(loaded[2] or {})})
        return loaded

    return {**kwargs, "loads": load}


def _result_of(task: Any, id: str, request: Any) -> Any:
    """What the result backend has of a job that has ended; None where it cannot say."""
    backend = task.backend
    # A result of rpc:// can be read once.
    if ignores_result(task, Context(request)) or not backend.persistent:
        return None
    with suppress(Exception):
        meta = backend.get_task_meta(id)
        if meta["status"] in states.READY_STATES:
            return meta
    return None


def _is_of_job(result: Any, since: float) -> bool:
    """Whether a result is one of this message, and not of an older one with the same task id, which
    senders use again: it was stored after the message was claimed before (``since``, in s)."""
    done = result.get("date_done")
    try:
        at = datetime.fromisoformat(done) if isinstance(done, str) else done
        at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
        return bool(at.timestamp() >= since - SKEW_S)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return True


def _complete(task: Any, result: Any, request: dict[str, Any]) -> None:
    """``worker_deduplicate_successful_tasks`` skips a job that has a result; it may have ended
    before it counted in its chord."""
    if not (request.get("chord") and task.app.conf.worker_deduplicate_successful_tasks):
        return
    # Only where a part counts once is it safe to count it again.
    if result["status"] == states.SUCCESS and is_on_redis(task.backend):
        task.backend.on_chord_part_return(RunContext(request), states.SUCCESS, result["result"])
        raise Completed
