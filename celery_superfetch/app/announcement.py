"""Announces a dead-lettered job, in the notice's run (``announce`` task): first to the receivers of
``job_killed``, then to its caller (the result), its chord, chain and errbacks, and its task's hook.
The task's body is in ``notice``; it runs in a worker's pool.

If it fails, how far it came is stored with the dead job, and the notice is tried later. If the
process dies in between, the notice is recovered, and its next run starts from what was stored:
receivers may be called twice, but steps that were published are not published again.

Foreign names:

celery
    publish the errbacks of a dead-lettered job: backends.base:Backend._call_task_errbacks(r,e,t)
    have a result backend that does not wait: app.base:Celery._get_backend()
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery, signals, states
from celery.backends.base import DisabledBackend
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError
from kombu.utils.encoding import safe_repr
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ..errors import PoisonPill
from ..model.dead_job import NO_PROGRESS, DeadJob
from ..model.foreign import describe, loggable, one_line
from ..model.log_text import one_line_each
from ..model.step import ITSELF, running, seed_of
from ..signals import job_killed
from .backend_turn import backend_turn
from .chords import fail_part, parts_ahead
from .dead_request import pill_of, request_of
from .dead_set import DeadSet
from .ignored_results import stores_failure
from .result_age import is_of_job
from .result_backends import own_backend

logger = one_line_each(get_logger(__name__))

REPLY_TIMEOUT = 3.0  # s to wait for a result backend on Redis, before a later run tries again
EVENT_TIMEOUT = 2.0  # s to wait for the broker when an event is sent to monitors


@cache
def impatient_backend(app: Celery, pid: int) -> Any:
    """Make a result backend for this process (``pid``). One on Redis neither retries nor waits for
    long: meanwhile the notice occupies a slot that jobs need."""
    backend = app._get_backend()
    backend.always_retry = False
    params = getattr(backend, "connparams", None)
    if params is not None:
        for name in {"socket_timeout", "socket_connect_timeout"} & {*params}:  # a path has none
            params[name] = min(params[name] or REPLY_TIMEOUT, REPLY_TIMEOUT)
        params.update(retry=Retry(NoBackoff(), 0), retry_on_timeout=False)
        backend.retry_policy = {**backend.retry_policy, "max_retries": 0}
    return backend


@cache
def dead_set_of(app: Celery, pid: int) -> DeadSet:
    """Return the dead set for this process (``pid``), made once: a thousand notices may come."""
    return DeadSet(app)


class Announcement:
    """The announcement of one dead-lettered job.

    Arguments:
        dead_id: its id in the dead set.
        notice_id: Celery's id of the notice that runs.
        careful: earlier runs of the notice were killed: store the result and no more.
    """

    def __init__(self, app: Celery, dead_id: str, notice_id: str, *, careful: bool) -> None:
        self.app, self.dead_id, self.notice_id = app, dead_id, notice_id
        self.title = one_line(dead_id)  # until it is known
        self.careful = careful
        self.job: DeadJob | None = None
        self.progress = NO_PROGRESS

    def make(self) -> None:
        """Announce the job, and mark it as announced in the dead set. Raises what the result
        backend or the broker raises: the notice then tries again later."""
        self.dead = dead_set_of(self.app, os.getpid())
        job = self.dead.exact(self.dead_id)
        if job is None:
            logger.warning(
                "Nobody is told of killed job %s: it is not in the dead set any more (it was "
                "retried, deleted or dropped before this notice ran).",
                self.title,
            )
            return
        if not self.dead.awaits(job, self.notice_id):
            # If it had, anybody who may publish could run the errbacks of other jobs again.
            logger.warning(
                "Failure notification %s has no effect: dead job %s was announced before, or has "
                "another notification. If this repeats, find out who sends these.",
                one_line(self.notice_id),
                self.title,
            )
            return
        self.job, self.progress = job, job.progress
        self.title = one_line(f"{job.task}[{job.task_id}]")
        self.task = self.app.tasks.get(job.task)  # this worker may have others
        own = self.task and own_backend(self.task)
        self.backend = own or impatient_backend(self.app, os.getpid())
        self.exc = pill_of(job)
        if not (self.progress.signalled or self.careful):
            job_killed.send(sender=self.app, job=job)
            self.progress = self.progress._replace(signalled=True)
        # A job without an id has no result. One that ended with its retry, or its replacement, goes
        # on under the same id: a failure would be stored for a job that runs.
        if None not in (job.task, job.task_id) and ITSELF not in job.steps:
            self.request = request_of(self.app, job, with_body=not self.careful)
            if notice := running.get():  # this run publishes the steps that the job did not
                notice.earlier = job.steps
                notice.seed = seed_of(self.request.properties or {}, str(job.task_id))
            self._tell_caller(job)
        self.dead.announced(job)

    def store_progress(self, *, failed: bool = False) -> None:
        """Store with the dead job how far this try came, for the next one. An error is only logged:
        the next try then repeats the signal, and nothing that was published."""
        if failed:
            dead_set_of.cache_clear()  # its server may be another one by now
            self.progress = self.progress._replace(failures=self.progress.failures + 1)
        if self.job is None or self.progress == self.job.progress:
            return
        try:
            dead_set_of(self.app, os.getpid()).store_progress(self.job, self.progress)
        except (RedisError, OSError) as exc:
            logger.warning(
                "The progress of the failure notification for dead job %s could not be stored "
                "(%s): receivers of job_killed may be called again.",
                self.title,
                exc,
            )

    def _tell_caller(self, job: DeadJob) -> None:
        """Store the failure and publish what follows it."""
        self.stores = self._stores()
        # A careful run takes no turn: the run that was killed may have left its turn locked.
        with nullcontext() if self.careful else backend_turn(self.dead.database):
            state = self._state(job)
        if state == states.SUCCESS:  # it had succeeded, and only its ack was lost
            # But it may not have counted in its chord, or be the part that publishes the body.
            with self._publishing_followers():
                return fail_part(self.backend, self.request, self.exc)
        if self.stores and state is None:
            self.backend.store_result(
                job.task_id, self.exc, states.FAILURE, traceback=None, request=self.request
            )
        if self.careful:
            logger.error(
                "Whoever announces killed job %s is killed, too: its caller is told, but "
                "errbacks, chord, chain and receivers are left out. One of them, or reading its "
                "body, kills whoever does it.",
                self.title,
            )
            return
        if not self.progress.called:
            with self._publishing_followers():
                self._chord_and_chain()
                self._errbacks()
            self.progress = self.progress._replace(called=True)
        if self.task is not None:  # else its receivers and its hook are with those who have it
            self._receivers(self.task)

    def _publishing_followers(self) -> AbstractContextManager[None]:
        """Mark that the notice's run publishes what follows the dead-lettered job."""
        notice = running.get()
        return notice.publishing_followers(vars(self.request)) if notice else nullcontext()

    def _stores(self) -> bool:
        """Return whether Celery would store a failure that the task raised."""
        if self.task is None:  # another app's; only the message is known
            return not self.request.ignore_result
        return stores_failure(self.task, self.request)

    def _state(self, job: DeadJob) -> str | None:
        """Return the job's stored state: SUCCESS, or FAILURE if an earlier run of the notice stored
        that. None: the failure is to be stored, since there is no result, or another one, or that
        of an older job with the same task id; or the backend keeps none."""
        backend = self.backend
        if isinstance(backend, DisabledBackend) or backend.as_uri() == "rpc://" or not self.stores:
            return None
        meta = backend.get_task_meta(self.request.id, cache=False)
        state: str = meta["status"]
        if not is_of_job(meta, job.first_claimed):
            return None
        # By its type: an exception of the user may say anything of its class, or raise.
        ours = state == states.FAILURE and issubclass(type(meta["result"]), PoisonPill)
        return state if ours or state == states.SUCCESS else None

    def _chord_and_chain(self) -> None:
        """Count the job in its chord, and fail what follows it in its chain."""
        request = self.request
        if not (request.chord or request.chain):
            return
        for part in (request, *parts_ahead(request.chain)):
            fail_part(self.backend, part, self.exc)
        # The job's own result is stored already; the option is for the tasks that follow.
        stores = bool(request.chain) and self.stores
        self.backend.mark_as_failure(
            self.request.id, self.exc, request=request, store_result=stores, call_errbacks=False
        )

    def _errbacks(self) -> None:
        """Publish the errbacks (old-style ones are called in place). Raises what a later run can
        repeat: an error of the server."""
        try:
            if self.request.errbacks:
                self.backend._call_task_errbacks(self.request, self.exc, None)
        except (OperationalError, RedisError, OSError):
            raise  # they could not be sent; a later pass can
        except Exception as error:  # before 5.7 Celery lets through what an errback raises
            logger.error(
                "An errback of killed job %s failed (%s): others may not have run. Its caller has "
                "been told; mend the errback.",
                self.title,
                describe(error),
                exc_info=loggable(error),
            )

    def _receivers(self, task: Any) -> None:
        """Call the task's hook and the receivers of ``task_failure``, and inform monitors."""
        request = self.request
        task.request_stack.push(request)  # receivers find it there, as in Celery's own request
        try:
            raise self.exc from None
        except PoisonPill as exc:  # as in Celery's tracer, receivers find it in ``sys.exc_info()``
            einfo = ExceptionInfo()
            try:
                if hook := getattr(task, "on_poisoned", None):
                    hook(exc, request.id, request.args, request.kwargs)
            except Exception as error:
                logger.error(
                    "The hook on_poisoned failed for killed job %s (%s). Its caller has been told; "
                    "mend the hook.",
                    self.title,
                    describe(error),
                    exc_info=loggable(error),
                )
            failure = {"args": request.args, "kwargs": request.kwargs, "einfo": einfo}
            signals.task_failure.send(
                sender=task, task_id=request.id, exception=exc, traceback=einfo.traceback, **failure
            )
        finally:
            task.request_stack.pop()
        if task.send_events:
            self._tell_monitors(exception=safe_repr(self.exc), traceback=einfo.traceback)

    def _tell_monitors(self, **fields: Any) -> None:
        """Send ``task-failed`` to monitors (Flower, `celery events`); an error is only logged."""
        notice = self.app.current_worker_task
        try:
            with self.app.connection_for_write() as connection:
                if connection.get_transport_cls().driver_type == "redis":
                    waits = ("socket_timeout", "socket_connect_timeout")
                    connection.transport_options.update(dict.fromkeys(waits, EVENT_TIMEOUT))
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                name = notice and notice.request.hostname
                monitors = self.app.events.Dispatcher(connection, name, buffer_while_offline=False)
                monitors.send("task-failed", uuid=self.request.id, name=self.request.task, **fields)
        except Exception as exc:
            logger.warning("Monitors miss event task-failed (%s). Jobs go on.", exc)
