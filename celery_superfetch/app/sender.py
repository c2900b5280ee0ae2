"""Wraps Celery's ``send_task_message`` in each process of an installed app.

While a job runs, each message that the process sends is examined: is it a *step*, which Celery
sends because the job ends (a callback, the next link of a chain, a chord's body, a retry), or did
user code send it? The transport finds a step in the context variable ``handing``, and publishes it
once, however often the job runs. If the server does not take a step, the job does not end: it is
requeued (``NotSent``), since an ack would lose the step. A chord's body is tried again first: for a
minute if the results are on Redis, otherwise without a limit, since Celery deletes a chord whose
body could not be sent. An error in sending a message of user code is raised to that code.

``AMQP`` (``broker.py``) calls ``sender`` when it makes the function. ``steps`` and ``task_hooks``
call ``release``: a run *holds* its retry, or the task that replaces the job, until it is known
whether the run ends with it.

If the process dies between two steps, the job is recovered, and its next run publishes those that
are missing. A note on the server, which ``step.lua`` writes together with each step, names the
steps that are on their queues (the *steps note*). A retry that was held is lost with the process,
and the next run makes it again. Messages that user code has sent may be sent again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

from celery import current_task
from celery.utils.log import get_logger
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from ..model.log_text import one_line_each
from ..model.step import Phase, Run, Step, handing, running
from ..store.redis.server import is_temporary
from .patient_calls import PAUSE_S, NotSent

logger = one_line_each(get_logger(__name__))

#: Number of tries to send the retry that a run holds: as many as Celery makes for a message.
SEND_TRIES = 4
SEND_PAUSE_S = 0.2  # between two of these tries
#: Errors of a server that cannot be reached.
SERVER_IS_AWAY = ConnectionError, TimeoutError, OSError

#: True while this thread or greenlet sends a message of a run. A message that is sent within is
#: that of a user's receiver of ``before_task_publish`` or ``after_task_publish``.
_sending: ContextVar[bool] = ContextVar("sending", default=False)


def sender(send: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function by which Celery's AMQP publishes tasks. The wrapper raises NotSent where
    the server does not take what the end of a job needs, and otherwise what ``send`` raises."""

    def send_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        run = running.get()
        if run is None:
            return send(producer, name, message, **options)
        step, is_needed = None, False
        if not _sending.get():
            if run.phase is not Phase.END:
                # If the run holds a retry, the body has caught ``Retry`` and continues: the run
                # does not end with it, and it is published now.
                release(run)
            step, is_needed = _step_of(run, message)
        handing_token, sending_token = handing.set(step), _sending.set(True)
        try:
            call = partial(send, producer, name, message, **options)
            return _send(run, call, producer, name) if is_needed else call()
        finally:
            handing.reset(handing_token)
            _sending.reset(sending_token)

    return send_message


def _step_of(run: Run, message: Any) -> tuple[Step | None, bool]:
    """Find out what a message is to the run that sends it.

    Returns:
        the step that it is, None if it is none; and whether the job must not end without it.
    """
    # In protocol 1 the body has these fields.
    is_v2 = "task" in message.headers
    fields, embed = (message.headers, message.body[2]) if is_v2 else (message.body, message.body)
    id, task = fields["id"], fields["task"]
    chord = embed.get("chord") and (fields.get("group") or fields.get("taskset"))
    if run.publishes_followers and _is_in_task_of(run):
        # Also in the run of a notice (``notice.py``), whose body publishes the followers of the
        # dead-lettered job: if an error was raised there, Celery would store it as the failure of
        # a chord's body, whose errbacks would be lost.
        return run.step(id, task, chord, of_end=True), True
    is_retry = id == run.task_id and fields.get("retries") == run.retries + 1
    replaces = id in run.replaced_by
    # A replacement has the job's place in its chord. If a chord replaces the job, its parts are no
    # steps, since their ids differ in each run; but the job must not end without them.
    if is_retry or (replaces and chord in (None, run.group)):
        return run.step(id, task, of_end=False, is_successor=True), True
    return None, replaces


def _is_in_task_of(run: Run) -> bool:
    """Return whether the run's own task, or this package, sends the message. If not, an errback
    that Celery calls in place does, or a task that the body runs eagerly. Outside of any task it is
    this package."""
    return not current_task or current_task.request.id == run.task_id


def release(run: Run, *, is_over: bool = False) -> None:
    """Publish the retry (or the replacement) that a run holds, if there is one.

    Arguments:
        is_over: the run has ended with the retry: the job does not run again if it is recovered.

    Raises:
        NotSent: the server does not take it.
        Fenced: the job belongs to another owner by now, since this one was declared dead.
    """
    for left in range(SEND_TRIES, 0, -1):
        try:
            return run.release(is_over=is_over)
        except (RedisError, OSError) as exc:
            if left == 1 or not (isinstance(exc, SERVER_IS_AWAY) or is_temporary(exc)):
                raise NotSent(f"Job {run.title} could not publish its retry ({exc})") from exc
            time.sleep(SEND_PAUSE_S)


def _send(run: Run, send: Callable[[], Any], producer: Any, name: str) -> Any:
    """Send a message without which the job has not ended. Where the server is away, or refuses it
    for a while: try again for ``Run.patience_s``, unless the job is a notice; then raise
    NotSent."""
    began = time.monotonic()
    while True:
        try:
            return send()
        except Exception as exc:
            lost, cause = producer.connection.recoverable_connection_errors, exc.__cause__ or exc
            # If a job was requeued for what the server refuses for good, it would run for ever.
            if not (isinstance(cause, lost) or is_temporary(cause)):
                raise
            trouble = f"Job {run.title} could not publish {name} ({exc})"
            if run.is_impatient or time.monotonic() - began >= run.patience_s:
                # Celery calls receivers of ``task_postrun`` next. Their messages are no steps.
                run.end_publishing()
                raise NotSent(trouble) from exc
            logger.warning(
                "%s: Redis does not accept it. Tried again every second. Check whether Redis "
                "answers, and its memory, disk and replicas.",
                trouble,
            )
            time.sleep(PAUSE_S)
