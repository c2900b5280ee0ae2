"""A process that a job, or a receiver of a signal, forks, and that returns into the worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery.utils.log import get_logger

logger = get_logger(__name__)


@contextmanager
def ending_forked_children(args: Sequence[Any]) -> Iterator[None]:
    """End each process that was forked in the block, and has come to the block's end by a return or
    an error. If it went on into the worker's code it would be a second worker on its parent's
    connections and pipes, and as it ended take its parent's sockets out of the set that both
    watch: the parent would claim nothing any more. ``args``: Celery's of the job, or another's."""
    parent, status = os.getpid(), 0
    try:
        yield
    except BaseException as exc:
        status = _status_of(exc)
        raise
    finally:
        if os.getpid() != parent:
            _end(args, status)


def end_forked_child(worker_pid: int) -> None:
    """End this process if it is no worker, but was forked by one (a receiver of a signal did so):
    it would run the worker's jobs once more, and at its end stop the worker's pool."""
    if os.getpid() != worker_pid:
        try:
            logger.warning(
                "A receiver of a signal forked a process that returned into the worker (pid=%d, "
                "worker's pid=%d): that process was ended, and the worker continues. Let such a "
                "process end by os._exit().",
                os.getpid(),
                worker_pid,
            )
        finally:
            os._exit(1)


def _status_of(exc: BaseException) -> int:
    if isinstance(exc, SystemExit) and exc.code in (None, 0):
        return 0
    code = exc.code if isinstance(exc, SystemExit) else 1
    return code if isinstance(code, int) else 1


def _end(args: Sequence[Any], status: int) -> None:
    try:
        name, id = [*args, "", ""][:2]
        logger.warning(
            "Job %s[%s] forked a process that returned into the worker (pid=%d): that process was "
            "ended (status=%d), and the job continues in its own. Let a process that a task forks "
            "end by os._exit().",
            name,
            id,
            os.getpid(),
            status,
        )
    finally:
        os._exit(status)
