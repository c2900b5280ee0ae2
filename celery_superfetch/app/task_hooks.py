"""Reports to the run of a job (``model.step.Run``) how far Celery has come with it: the task's body
begins and ends, Celery publishes what follows the job, the task retries or replaces itself. From
that ``app.sender`` knows which messages of the run are *steps*: messages that are published because
the job ends, and that are published once however often it runs.

``app.steps`` calls ``hook`` before each run. In the first run of a task in this process it wraps
methods of the task (``run``, ``__call__``, ``retry``, ``on_replace``) and of its result backend
(``mark_as_done``, ``mark_as_failure``, ``on_chord_part_return``). Outside the run of a job the
wrappers only call what they wrap. All of this is in memory: if the process dies, the next process
hooks again, and the job is recovered with the note of its published steps (``app.steps``).

Celery's tracer reads a task's ``run`` when the tracer is built: so it is built again here.

Foreign names:

celery
    know when a body ends, and what Celery publishes after it: app.task:Task.__trace__
        app.trace:build_tracer(name,task,loader,hostname,app=)
        backends.base:Backend.mark_as_done(id,result)
        backends.base:Backend.mark_as_failure(id,exc,traceback,request=)
        backends.redis:RedisBackend.on_chord_part_return(request,state,result)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial, wraps
from math import inf
from typing import Any

from celery import Task
from celery.app import trace

from ..model.step import Phase, ids_of, running
from .chords import on_chord_part_return
from .forked_children import call_body
from .patient_calls import PATIENCE_S
from .sender import release

#: Marks what is wrapped: a task, a result backend, a ``__call__``.
HOOKED = "superfetch_hooked"

_hooking = threading.Lock()


def hook(task: Any, hostname: str | None) -> None:
    """Wrap the methods of a task and of its result backend, if that was not done before.

    Arguments:
        hostname: of the worker; Celery's tracer stores it with a job's start.
    """
    backend = task.backend
    if HOOKED in vars(task) and HOOKED in vars(backend):
        return
    with _hooking:  # the pool may run two threads
        if HOOKED not in vars(backend):
            _hook_backend(backend)
            setattr(backend, HOOKED, True)
        if HOOKED not in vars(task):
            _hook_task(task)
            app = task.app
            task.__trace__ = trace.build_tracer(task.name, task, app.loader, hostname, app=app)
            setattr(task, HOOKED, True)


def _hook_task(task: Any) -> None:
    task.run = _body(task, task.run)
    task.retry = _retry(task.retry)
    task.on_replace = _on_replace(task.on_replace)
    # Celery calls a ``__call__`` of the user in place of ``run``: then that is the whole body.
    cls = type(task)
    call = cls.__call__
    if call is not Task.__call__ and not hasattr(call, HOOKED):

        @wraps(call)
        def call_hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _run_body(self, partial(call, self), args, kwargs)

        setattr(call_hooked, HOOKED, True)
        cls.__call__ = call_hooked


def _body(task: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _run_body(task, body, args, kwargs)

    return run


def _run_body(task: Any, body: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run the body of a job, and report its begin and its end. If the body calls a task, itself or
    another one, directly or eagerly, that call is part of the body."""
    body = partial(call_body, body)
    run = running.get()
    if run is None or run.phase is not Phase.BEFORE:
        return body(*args, **kwargs)
    request = task.request
    if request.id != run.task_id:
        return body(*args, **kwargs)
    message = vars(request)
    # ``app.steps`` begins to publish the followers of a job that Celery may skip. This job was not
    # skipped.
    run.end_publishing()
    run.hide_ids(message)  # the body sees the signatures as their sender wrote them
    run.phase = Phase.BODY
    try:
        result = body(*args, **kwargs)
    finally:
        run.phase = Phase.END
    # From here to ``mark_as_done`` Celery publishes callbacks, the next link and a chord's body.
    run.begin_publishing(message)
    return result


def _retry(retry: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(retry)
    def retry_hooked(*args: Any, **kwargs: Any) -> Any:
        answer = retry(*args, **kwargs)
        # ``retry`` has returned and not raised (throw=False): the run does not end with the retry.
        if run := running.get():
            release(run)
        return answer

    return retry_hooked


def _on_replace(on_replace: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_replace)
    def on_replace_hooked(sig: Any) -> Any:
        run = running.get()
        if run is None:
            return on_replace(sig)
        before, run.replaced_by = run.replaced_by, ids_of(sig)
        try:
            return on_replace(sig)
        finally:
            run.replaced_by = before

    return on_replace_hooked


def _hook_backend(backend: Any) -> None:
    # Without ``wraps``, which is slow: each greenlet has a backend of its own, so that this is done
    # for each job.
    backend.mark_as_done = _mark_as_done(backend.mark_as_done)
    backend.mark_as_failure = _mark_as_failure(backend.mark_as_failure)
    # If sending the body of a chord raised, Celery would delete the chord, and no later run could
    # complete it. The function of ``chords`` keeps the chord. (A backend on Redis may lack it: a
    # task may make one of its own in each process, which ``result_backends`` does not patch.)
    count = backend.on_chord_part_return
    is_kept = getattr(count, "__func__", None) is on_chord_part_return
    patience_s = PATIENCE_S if is_kept else inf
    backend.on_chord_part_return = _on_chord_part_return(count, patience_s)


def _mark_as_done(mark: Callable[..., Any]) -> Callable[..., Any]:
    def mark_as_done(task_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return mark(task_id, *args, **kwargs)
        finally:
            # The followers are published: hooks and receivers of signals are next.
            run = running.get()
            if run is not None and run.task_id == task_id:
                run.end_publishing()

    return mark_as_done


def _mark_as_failure(mark: Callable[..., Any]) -> Callable[..., Any]:
    def mark_as_failure(task_id: str, *args: Any, **kwargs: Any) -> Any:
        run, request = running.get(), kwargs.get("request")
        is_of_run = run is not None and run.task_id == task_id and run.phase is not Phase.BODY
        if run is None or request is None or not is_of_run:
            return mark(task_id, *args, **kwargs)
        # If Celery has begun to publish what follows a success, that has failed.
        run.end_publishing()
        with run.publishing_followers(vars(request)):
            return mark(task_id, *args, **kwargs)

    return mark_as_failure


def _on_chord_part_return(count: Callable[..., Any], patience_s: float) -> Callable[..., Any]:
    def on_chord_part_return(*args: Any, **kwargs: Any) -> Any:
        run = running.get()
        if run is None:
            return count(*args, **kwargs)
        before, run.patience_s = run.patience_s, patience_s
        try:
            return count(*args, **kwargs)
        finally:
            run.patience_s = before

    return on_chord_part_return
