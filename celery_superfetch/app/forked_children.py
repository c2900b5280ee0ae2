"""Ends a child process that user code made by ``os.fork()``, if the child returns from that code
into Celery's or the worker's code.

If a task calls ``os.fork()`` and both processes return, the child is a second copy of the worker,
or of its pool process. It would store a result of the job, and publish what follows the job, while
the parent still runs it. A copy of the worker would claim and run jobs under its parent's identity
(the *owner*), so jobs would run twice, and at its end it would stop its parent's pool.

``run_job`` calls the run of a job by ``call_run``, and ``app.task_hooks`` calls its body by
``call_body``. The gate (``worker/gate.py``) calls ``end_forked_child`` in each tick of the worker's
loop: for a receiver of a signal that forks, and for a child of a gevent job, in which all other
greenlets of the worker go on as soon as the child waits for something.

The child is ended before it claims anything, and the parent still has all jobs, so no job is lost.
If the parent dies first, the child is ended all the same when it returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from celery.utils.log import get_logger

from ..model.log_text import one_line_each
from ..model.process import own_pid

logger = one_line_each(get_logger(__name__))

#: Ends the forked children of the job that this thread or greenlet runs; None once its body has
#: begun. A task that the body calls is part of the body.
_before_body: ContextVar[_ending_children | None] = ContextVar("before_body", default=None)


def call_run(job: Sequence[Any], run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the run of a job. End each process that was forked inside it and leaves it or, if it
    has one, the body of its task.

    Arguments:
        job: the arguments of Celery's tracer, which begin with the task's name and id, for the log.
    """
    children = _ending_children(job)
    _before_body.set(children)
    try:
        with children:
            return run(*args, **kwargs)
    finally:
        _before_body.set(None)


def call_body(body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the body of a task. If it is the body of a job, end each process that was forked inside
    it and leaves it: Celery's tracer would store the result of that process, and publish the job's
    callbacks or errbacks, whatever becomes of the job."""
    children = _before_body.get()
    if children is None:
        return body(*args, **kwargs)
    _before_body.set(None)
    with children:
        return body(*args, **kwargs)


class _ending_children:
    """A context: each process that was forked inside it ends when it leaves the context, also by an
    exception. If such a process continued, it would use its parent's connections and pipes. As it
    ended, it would remove its parent's sockets from the epoll set that both share, and then the
    parent would claim nothing any more."""

    def __init__(self, job: Sequence[Any]) -> None:
        self._job, self._parent = job, own_pid()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if own_pid() != self._parent:
            _end(self._job, _status_of(error))


def end_forked_child(worker_pid: int) -> None:
    """End this process if it is not the worker itself, but a child that a receiver of a signal, or
    a gevent job, has forked: it would run the worker's jobs a second time, and at its end stop the
    worker's pool."""
    if own_pid() != worker_pid:
        try:
            logger.warning(
                "A forked process came into the worker's loop (pid=%d, worker_pid=%d): a signal "
                "receiver or a gevent job had forked it. It was ended, and the worker continues. "
                "End such a process with os._exit(); under gevent, before it waits for anything.",
                own_pid(),
                worker_pid,
            )
        finally:
            os._exit(1)


def _status_of(exc: BaseException | None) -> int:
    """Return the exit status that Python gives to a process that ends by ``exc`` (None: by a
    return)."""
    if exc is None or (isinstance(exc, SystemExit) and exc.code is None):
        return 0
    code = exc.code if isinstance(exc, SystemExit) else 1
    return code if isinstance(code, int) else 1


def _end(job: Sequence[Any], status: int) -> None:
    """End this process at once, also if the log raises."""
    try:
        name, id = [*job, "", ""][:2]
        logger.warning(
            "Job %s[%s] forked a process that returned into the worker (pid=%d, status=%d): that "
            "process was ended, and the job continues. In the task, end each forked process with "
            "os._exit().",
            name,
            id,
            own_pid(),
            status,
        )
    finally:
        os._exit(status & 0xFF)  # as the system has it: ``_exit`` refuses a larger number
