"""Ends processes that user code forked (a task, or a receiver of a signal) and that return from it
into the worker's code. If such a process went on, there would be two workers with one owner: each
job would run twice, and at its end the copy would stop the pool of its parent.

``run_job`` uses the block around each run; the gate calls ``end_forked_child`` in each tick of the
worker's loop. The copy claims nothing, so its end loses no job.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from celery.utils.log import get_logger

from ..model.log_text import one_line_each
from ..model.process import own_pid

logger = one_line_each(get_logger(__name__))


class ending_forked_children:
    """A block at whose end each process ends that was forked in it, also if it comes there by an
    error. If it went on into the worker's code it would be a second worker on its parent's
    connections and pipes, and as it ended it would remove its parent's sockets from the epoll set
    that both share: the parent would claim nothing any more.

    Arguments:
        args: of Celery's tracer, which begin with the task's name and id, for the log.
    """

    def __init__(self, args: Sequence[Any]) -> None:
        self._args, self._parent = args, own_pid()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if own_pid() != self._parent:
            _end(self._args, _status_of(error))


def end_forked_child(worker_pid: int) -> None:
    """End this process if it is not the worker, but was forked from it by a receiver of a signal:
    it would run the worker's jobs a second time, and at its end stop the worker's pool."""
    if own_pid() != worker_pid:
        try:
            logger.warning(
                "A receiver of a signal forked a process that returned into the worker (pid=%d, "
                "worker's pid=%d): that process was ended, and the worker continues. Let such a "
                "process end by os._exit().",
                own_pid(),
                worker_pid,
            )
        finally:
            os._exit(1)


def _status_of(exc: BaseException | None) -> int:
    """Return the exit status of a process that ends by ``exc``, as Python has it; None: by a
    return."""
    if exc is None or (isinstance(exc, SystemExit) and exc.code is None):
        return 0
    code = exc.code if isinstance(exc, SystemExit) else 1
    return code if isinstance(code, int) else 1


def _end(args: Sequence[Any], status: int) -> None:
    """End this process at once, also if the log raises."""
    try:
        name, id = [*args, "", ""][:2]
        logger.warning(
            "Job %s[%s] forked a process that returned into the worker (pid=%d): that process was "
            "ended (status=%d), and the job continues in its own. Let a process that a task forks "
            "end by os._exit().",
            name,
            id,
            own_pid(),
            status,
        )
    finally:
        os._exit(status)
