"""Waits for a Redis server that refuses, for a while, what the end of a job needs: its result, its
part of a chord, its *steps* (the messages that are published because the job ends). Until the
server takes them, the job has not ended. The calls of a chord also wait for a server that is away.

The scripts of ``chords``, and a result backend that ``result_backends`` has patched, call
``patiently`` in the process, thread or greenlet that runs the job. ``sender`` raises ``NotSent``
for a step. A notice (the job that announces a dead-lettered job) does not wait: ``notice`` parks
it. If the process dies meanwhile, the job was not acked: it is recovered, and runs again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery.utils.log import get_logger
from redis.commands.core import Script
from redis.exceptions import ConnectionError, TimeoutError

from ..model.log_text import one_line_each
from ..model.step import running
from ..store.redis.server import is_temporary

logger = one_line_each(get_logger(__name__))

T = TypeVar("T")

PAUSE_S = 1.0  # between two tries
#: Errors of a server that cannot be reached, or of a connection that was lost.
AWAY = ConnectionError, TimeoutError
PATIENCE_S = 60.0  # for which a running job waits in its slot, before it is requeued


class NotSent(BaseException):
    """The server has not taken what a job has to publish or to store at its end; ``steps.run``
    requeues the job (``notice`` parks a notice). No ``Exception``: Celery would store that as the
    job's failure, and ack it."""


def patiently(call: Callable[[], T], action: str, *, if_away: bool = False) -> T:
    """Call the result backend for the end of the current job, again each second while the server
    refuses it (out of memory, a full disk, a replica).

    The error is raised at once in a worker's main process, and in a job that was acked before it
    ran: the package holds no claim on that job, so it could not requeue it for another try.

    Arguments:
        call: may be repeated; a refused call has changed nothing.
        action: completes "Job ... could not", for the log.
        if_away: call again also if the server cannot be reached, or the connection was lost. Then
            the first call may have been carried out.

    Raises:
        NotSent: the server has not carried it out for ``PATIENCE_S``; or once, if the job is
            impatient.
    """
    job, began = running.get(), time.monotonic()
    errors = AWAY if if_away else ()
    while True:
        try:
            return call()
        except Exception as exc:
            if job is None or not (isinstance(exc, errors) or is_temporary(exc)):
                raise
            trouble = f"Job {job.title} could not {action} ({exc})"
            if job.is_impatient or time.monotonic() - began > PATIENCE_S:
                # Celery calls receivers of ``task_postrun`` next. Their messages are no steps.
                job.end_publishing()
                raise NotSent(trouble) from exc
            logger.warning(
                "%s: Redis refuses the command, or does not answer. Tried again every second. "
                "Check whether Redis answers, and its memory, disk, replicas and long scripts.",
                trouble,
            )
            time.sleep(PAUSE_S)


class PatientScript(Script):
    """A Lua script of the end of a chord, called ``patiently``, also if the server is away: Celery
    would fail the chord. ``action``: as there."""

    def __init__(self, text: bytes, action: str) -> None:
        no_client: Any = None  # the backend has none yet; each call names its client
        super().__init__(no_client, text)
        self.action = action

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = super().__call__
        return patiently(lambda: call(*args, **kwargs), self.action, if_away=True)
