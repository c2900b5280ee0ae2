"""Runs a job where the pool runs it: a pool process, a thread or a greenlet.

The *steps* of a job are the messages that are published because it ends: callbacks, the next link
of its chain, a chord's body, a retry. ``worker.run_job`` calls ``run`` with the job's claim (the
record that this worker holds the job) and Celery's tracer. ``run`` gives the steps ids that are the
same in each run, lets Celery's tracer run the task's body and publish the steps, and turns two
errors into an outcome of Celery's: a requeue if the server did not take a step (``NotSent``), an
``Ignore`` if the job has ended already or is another worker's by now (``Fenced``).

If the process dies in a run, a reaper puts the job back on its queue. Its next claim has the steps
note (``model.step``), which names the steps that were published: the body runs again, and only the
other steps are published. If the run had published its retry, the job does not run again.

Foreign names:

celery app.trace:
    know what a job publishes as it ends: fast_trace_task(task,uuid,request,body,type,encoding)
        trace_task_ret(name,uuid,request,body,type,encoding)
    find the task of the worker's app: _localized.__iter__()
celery backends.redis:
    count a part of a chord again: RedisBackend.on_chord_part_return(request,state,result)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import current_app, states
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.log import get_logger
from kombu.serialization import loads, prepare_accept_content

from ..model.job import DELIVERY, Counters
from ..model.log_text import one_line_each
from ..model.step import Claim, Fenced, Run, running, seed_of
from .chords import is_on_redis
from .ignored_results import ignores_result
from .patient_calls import NotSent
from .result_age import is_of_job
from .sender import release
from .task_hooks import hook

logger = one_line_each(get_logger(__name__))

#: Celery's own headers. Celery takes every other header for the user's.
OF_CELERY = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
FIRST_RUN = Counters().as_header()


class Completed(BaseException):
    """Raised to end the run of a job that had succeeded before: its body does not run again."""


def run(claim: Claim, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a job and return the outcome, as Celery's tracer does.

    Arguments:
        claim: its ``id`` is empty if the job was acked before it ran: then it has no steps.
        target: one of Celery's tracers; another function is called as it is.
    """
    token = running.set(None)
    try:
        if is_tracer(target):
            # Celery's tracer would raise the same for a bad message; the worker stores and logs it.
            args = _prepare(claim, _tasks_of(target), *args)
        try:
            answer = target(*args, **kwargs)
        except Exception:
            _release(None)
            raise
        _release(answer)
        return answer
    except NotSent as exc:
        logger.warning("%s: the job is requeued and runs again.", exc)
        return _ended_by(Reject(str(exc), requeue=True), exc)
    except Fenced as exc:
        # If the job is over, nothing was lost and there is nothing to do.
        logger.log(logging.INFO if claim.is_over else logging.WARNING, "%s.", exc)
        return _ended_by(Ignore(str(exc)), exc)
    except Completed:
        return 0, None, 0.0
    finally:
        running.reset(token)


def is_tracer(target: Callable[..., Any]) -> bool:
    """Return whether a function is one of Celery's tracers."""
    return target in (trace.trace_task_ret, trace.fast_trace_task)


def _tasks_of(tracer: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the tasks by name, as one of Celery's tracers finds them. ``fast_trace_task`` has the
    tasks of the worker's app; ``current_app`` could be another app, if a task has changed it."""
    tasks: Mapping[str, Any]
    if tracer is trace.fast_trace_task and trace._localized:
        tasks, *_ = trace._localized
    else:
        tasks = current_app.tasks
    return tasks


def _ended_by(semipredicate: Exception, exc: BaseException) -> Any:
    """Return the outcome that Celery's tracer has for a task that raised ``semipredicate``."""
    return 1, ExceptionInfo((type(semipredicate), semipredicate, exc.__traceback__)), 0.0


def _release(answer: Any) -> None:
    """Publish the retry, or the replacement, that the run holds. The tracer's answer says whether
    the job is over with it: then the run ended by ``Retry``, or by the ``Ignore`` of replace()."""
    job = running.get()
    if job is None or not job.held:
        return
    failed, error, *_ = answer if isinstance(answer, tuple) else (False, None)
    exc = getattr(error, "exception", None)  # billiard may wrap it, with the error as ``exc``
    is_over = bool(failed) and isinstance(getattr(exc, "exc", exc), (Retry, Ignore))
    release(job, is_over=is_over)


def _prepare(
    claim: Claim,
    tasks: Mapping[str, Any],
    name: str,
    id: str,
    request: Any,
    body: Any,
    content_type: Any,
    content_encoding: Any,
) -> tuple[Any, ...]:
    """Start the record of a run (``running``) and put this delivery's counters into the request.

    Arguments:
        tasks: those that Celery's tracer knows.
        name: this and the following are the arguments of Celery's tracer.

    Returns:
        the arguments to call the tracer with.

    Raises:
        Fenced: an earlier run has ended the job by its retry or replacement.
        Completed: the job has its result and only had to count in its chord; that is done.
    """
    title = f"{name}[{id}]"
    if claim.is_over:
        raise Fenced(
            f"Job {title} does not run again: an earlier run published its retry or its "
            "replacement before it was cut short"
        )
    if request.get("headers") is None:  # Celery would take this package's for the user's
        request["headers"] = {k: v for k, v in request.items() if k not in OF_CELERY}
    counters = request.get(DELIVERY)
    task = tasks[name]
    # Only a job that was delivered before may have a result.
    result = (claim.steps or counters) and _result_of(task, id, request)
    # For the task (``self.request.superfetch``): an earlier run had ended its body. Steps are
    # published only after that.
    ended = bool(claim.steps) or (bool(result) and is_of_job(result, claim.since))
    request[DELIVERY] = {**(counters or FIRST_RUN), "ended": ended, "token": claim.token}
    if claim.id:
        seed = seed_of(request.get("properties") or {}, id)
        group, retries = request.get("group"), request.get("retries") or 0
        running.set(Run(claim, id, title, group, seed, retries))
    hook(task, request.get("hostname"))  # also of a job that was acked before: its body may fork
    if result and result["status"] == states.SUCCESS and _is_deduplicated(task):
        if content_type:  # if not, it was decoded before, as protocol 1 always is
            accept = prepare_accept_content(task.app.conf.accept_content)
            body = loads(body, content_type, content_encoding, accept=accept)
            content_type = content_encoding = None
        _complete(task, result, request, body[2] or {})
    return name, id, request, body, content_type, content_encoding


def _result_of(task: Any, id: str, request: Any) -> Any:
    """Read the stored result of a job that has ended; None if there is none, or it cannot be read.
    Then the job runs again: at least once is the promise."""
    backend = task.backend
    # A result of rpc:// can be read once: the caller would never get it.
    if ignores_result(task, Context(request)) or not backend.persistent:
        return None
    with suppress(Exception):
        meta = backend.get_task_meta(id)
        if meta["status"] in states.READY_STATES:
            return meta
    return None


def _is_deduplicated(task: Any) -> bool:
    """Return whether Celery skips a job of this task that has succeeded before."""
    return bool(task.app.conf.worker_deduplicate_successful_tasks)


def _complete(task: Any, result: Any, request: dict[str, Any], embed: dict[str, Any]) -> None:
    """Complete a job that has succeeded in an earlier run, and that Celery therefore skips.

    Celery does not count such a job in its chord. If the earlier run died between its result and
    the count, the chord would wait for ever: so a part of a chord is counted here. What follows
    another job Celery publishes itself, unless the stored result says that this was done; these
    messages are made steps here.

    Arguments:
        embed: the callbacks, errbacks, chain and chord in the body of its message.

    Raises:
        Completed: it is counted, and there is nothing left to do.
    """
    run = running.get()
    context = Context({**request, **embed})
    # Only where a part counts once is it safe to count it again.
    if context.chord and is_on_redis(task.backend):
        with run.publishing_followers(vars(context)) if run else nullcontext():
            task.backend.on_chord_part_return(context, states.SUCCESS, result["result"])
        raise Completed
    if run and context.delivery_info and context.delivery_info.get("redelivered"):
        run.begin_publishing(embed)
