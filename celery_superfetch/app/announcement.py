"""Announces a dead-lettered job: first to the receivers of ``job_killed``, then to its caller (the
result), its chord, chain and errbacks, and its task's hook.

The *notice* (failure notification) is a job as well: its task ``announce`` (``notice.py``), which a
worker's pool runs, makes an ``Announcement`` and calls ``make``. It calls ``store_progress`` when
``make`` has failed or has to wait: how far it came is stored with the dead job, and the notice is
tried later.

If the process is killed in between, nothing of this try is stored, and the notice is recovered (put
back on its queue, with a strike). Its next run begins where the last stored try had ended. So
receivers may be called twice. The *steps* (messages that are published because a job ends: errbacks
and the like) are not published twice: the notice's steps note on the server names those that were.
After three strikes a run is *careful*: it stores the result and does nothing else. The errbacks,
the chord, the chain and the receivers are then lost, which is logged as an error.

Foreign names:

celery
    publish the errbacks of a dead-lettered job: backends.base:Backend._call_task_errbacks(r,e,t)
    have a result backend that does not wait: app.base:Celery._get_backend()
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from traceback import walk_tb
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import Celery, signals, states
from celery.backends.base import DisabledBackend
from celery.canvas import Signature
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
from ..model.step import ENDED_BY_SUCCESSOR, running, seed_of
from ..signals import job_killed
from .backend_lock import backend_lock
from .chords import fail_part, parts_ahead
from .dead_request import pill_of, request_of
from .dead_set import DeadSet
from .ignored_results import stores_failure
from .result_age import is_of_job
from .result_backends import own_backend

logger = one_line_each(get_logger(__name__))

BACKEND_TIMEOUT_S = 3.0  # s to wait for a result backend on Redis, before a later run tries again
EVENT_TIMEOUT_S = 2.0  # s to wait for the broker when an event is sent to monitors


@cache
def impatient_backend(app: Celery, pid: int) -> Any:
    """Make a result backend for this process. One on Redis neither retries nor waits for long:
    meanwhile the notice occupies a slot that jobs need. ``pid``: only the key of the cache, so that
    a forked process makes its own."""
    backend = app._get_backend()
    backend.always_retry = False
    params = getattr(backend, "connparams", None)
    if params is not None:
        # A connection by a Unix socket has no connect timeout.
        for name in {"socket_timeout", "socket_connect_timeout"} & {*params}:
            params[name] = min(params[name] or BACKEND_TIMEOUT_S, BACKEND_TIMEOUT_S)
        params.update(retry=Retry(NoBackoff(), 0), retry_on_timeout=False)
        backend.retry_policy = {**backend.retry_policy, "max_retries": 0}
    return backend


@cache
def dead_set_of(app: Celery, pid: int) -> DeadSet:
    """Return the dead set for this process, made once: a thousand notices may come. ``pid``: as for
    ``impatient_backend``."""
    return DeadSet(app)


class NoLongerAwaited(Exception):
    """The end of a notice whose job left the dead set (retried, deleted or dropped at a limit), or
    died again, while the notice ran: its caller is not to be informed."""


class Announcement:
    """The announcement of one dead-lettered job.

    Arguments:
        dead_id: its id in the dead set.
        notice_id: Celery's id of the notice that runs.
        careful: store the result and nothing else, since ``NOTICE_RUNS_MAX`` earlier runs of the
            notice have lost their process.
    """

    def __init__(self, app: Celery, dead_id: str, notice_id: str, *, careful: bool) -> None:
        self.app, self.dead_id, self.notice_id = app, dead_id, notice_id
        self.title = one_line(dead_id)  # until the task's name is known
        self.careful = careful
        self.job: DeadJob | None = None
        self.progress = NO_PROGRESS

    def make(self) -> None:
        """Announce the job, and mark it as announced in the dead set. The notice tries again later
        if this raises: NotNow or BeingRetried, if it has to wait; NotSent, or what the result
        backend or the broker raises, if it has failed."""
        self.dead = dead_set_of(self.app, os.getpid())
        job = self.dead.exact(self.dead_id)
        if job is None:
            logger.warning(
                "Failure notification has no effect (dead_id=%s): the job is no longer in the dead "
                "set (it was retried, deleted or dropped at a limit meanwhile). Its caller may "
                "not have been informed: unless the job was retried, do it yourself.",
                self.title,
            )
            return
        if not self.dead.awaits(job, self.notice_id):
            # If such a notice had an effect, any producer could send one and so run the errbacks of
            # other jobs again.
            logger.warning(
                "Failure notification has no effect (task_id=%s, dead_id=%s): the caller of this "
                "dead job was informed before, or another notification is to do it. If such "
                "notifications repeat, find the program that sends them.",
                one_line(self.notice_id),
                self.title,
            )
            return
        self.job, self.progress = job, job.progress
        self.title = one_line(f"{job.task}[{job.task_id}]")
        self.task = self.app.tasks.get(job.task)  # this worker may have others
        task_backend = self.task and own_backend(self.task)
        self.backend = task_backend or impatient_backend(self.app, os.getpid())
        self.exc = pill_of(job)
        if not (self.progress.signalled or self.careful):
            job_killed.send(sender=self.app, job=job)
            self.progress = self.progress._replace(signalled=True)
        # A job without an id has no result. A job that has published its own retry, or its
        # replacement continues under the same id: a failure would be stored for a job
        # that runs.
        if None not in (job.task, job.task_id) and ENDED_BY_SUCCESSOR not in job.steps:
            self.request = request_of(self.app, job, with_body=not self.careful)
            if notice := running.get():  # the notice's run publishes the steps that the job did not
                notice.is_impatient = True
                notice.earlier = job.steps
                notice.seed = seed_of(self.request.properties or {}, str(job.task_id))
            try:
                self._inform_caller(job)
            except NoLongerAwaited:
                logger.warning(
                    "Failure notification for dead job %s stopped (dead_id=%s): the job was "
                    "retried, deleted or dropped at a limit meanwhile. Its caller may not have "
                    "been informed: unless the job was retried, do it yourself.",
                    self.title,
                    one_line(self.dead_id),
                )
                return
        self.dead.announced(job)

    def store_progress(self, *, failed: bool = False) -> None:
        """Store with the dead job how far this try came, for the next one. An error is only logged:
        then the next try calls the receivers of ``job_killed`` again, but publishes nothing
        twice."""
        if failed:
            dead_set_of.cache_clear()  # after a failover another server may have the dead set
            self.progress = self.progress._replace(failures=self.progress.failures + 1)
        if self.job is None or self.progress == self.job.progress:
            return
        try:
            dead_set_of(self.app, os.getpid()).store_progress(self.job, self.progress)
        except (RedisError, OSError) as exc:
            logger.info(
                "The progress of the failure notification for dead job %s was not stored (%s): "
                "receivers of job_killed may be called again. No message is sent twice.",
                self.title,
                exc,
            )

    def _check_awaited(self, job: DeadJob) -> None:
        """Raise NoLongerAwaited if the job has left the dead set, or has died again. A receiver or
        the result backend may have taken long. If an operator retries the job meanwhile, it may
        succeed, and its caller must not get a failure, nor its chord and errbacks. Raises
        BeingRetried while a retry is under way: the notice is postponed."""
        if not self.dead.awaits(job, self.notice_id):
            raise NoLongerAwaited

    def _inform_caller(self, job: DeadJob) -> None:
        """Store the failure and publish what follows it. Raises NoLongerAwaited or BeingRetried."""
        self.stores = self._stores()
        # A careful run does not take the lock of the result backend (``backend_lock``): the run
        # that was killed may have left it locked.
        with nullcontext() if self.careful else backend_lock(self.dead.database):
            state = self._state(job)
        self._check_awaited(job)
        if state == states.SUCCESS:  # it had succeeded, and only its ack was lost
            # Its run may have ended before it was counted in its chord, or before it published the
            # chord's body. Nothing can do that now, so the chord has to fail.
            with self._publishing_followers():
                return fail_part(self.backend, self.request, self.exc, job.steps)
        if self.stores and state is None:
            self.backend.store_result(
                job.task_id, self.exc, states.FAILURE, traceback=None, request=self.request
            )
        if self.careful:
            logger.error(
                "The failure notification for dead job %s killed its process repeatedly: only "
                "the result is stored now, without errbacks, chord, chain and receivers. Find out "
                "which of these kills the process; it may also be the message's body.",
                self.title,
            )
            return
        if not self.progress.called:
            self._check_awaited(job)
            with self._publishing_followers():
                self._chord_and_chain(job)
                self._check_awaited(job)
                self._errbacks()
            self.progress = self.progress._replace(called=True)
        if self.task is not None:  # None: a task of another app, which has its receivers and hook
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
        is_poison_pill = state == states.FAILURE and issubclass(type(meta["result"]), PoisonPill)
        return state if is_poison_pill or state == states.SUCCESS else None

    def _chord_and_chain(self, job: DeadJob) -> None:
        """Count the job in its chord, and fail what follows it in its chain."""
        request = self.request
        if not (request.chord or request.chain):
            return
        fail_part(self.backend, request, self.exc, job.steps)
        for part in parts_ahead(request.chain):
            fail_part(self.backend, part, self.exc)
        # The job's own result is stored already; ``store_result`` is for the tasks that follow.
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
        except Exception as error:  # before 5.7 Celery lets through what an errback raises
            is_of_server = isinstance(error, (OperationalError, RedisError, OSError))
            if is_of_server and not _was_called_in_place():
                raise  # they could not be sent; a later run of the notice can send them
            logger.error(
                "An errback of dead job %s failed (%s): other errbacks may not have run. The "
                "job's failure was stored. Fix the errback.",
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
                    "The hook on_poisoned of dead job %s failed (%s). The job's failure was "
                    "stored. Fix the hook.",
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
            self._inform_monitors(exception=safe_repr(self.exc), traceback=einfo.traceback)

    def _inform_monitors(self, **fields: Any) -> None:
        """Send ``task-failed`` to monitors (Flower, `celery events`); an error is only logged."""
        notice = self.app.current_worker_task
        try:
            with self.app.connection_for_write() as connection:
                if connection.get_transport_cls().driver_type == "redis":
                    waits = ("socket_timeout", "socket_connect_timeout")
                    connection.transport_options.update(dict.fromkeys(waits, EVENT_TIMEOUT_S))
                connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
                name = notice and notice.request.hostname
                monitors = self.app.events.Dispatcher(connection, name, buffer_while_offline=False)
                monitors.send("task-failed", uuid=self.request.id, name=self.request.task, **fields)
        except Exception as exc:
            logger.warning(
                "Event task-failed of dead job %s was not sent (%s): monitors miss this failure. "
                "Jobs are not affected.",
                self.title,
                exc,
            )


def _was_called_in_place() -> bool:
    """Return whether the exception that is being handled was raised within an errback that Celery
    has called in place. Such an errback may use a server of its own: if an error of that was taken
    for one of the broker, the notice would be tried again for ever, and call the errback each
    time."""
    calls = (frame.f_code for frame, _ in walk_tb(sys.exc_info()[2]))
    return Signature.__call__.__code__ in calls
