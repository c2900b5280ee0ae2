"""The request class of a worker. A request hands its job to the pool when the gate lets it start,
and settles the job by the outcome that the pool reports.

A job that has ended is acked. If the run was cut short, the job is *requeued* (returned to its
queue on purpose: its worker is stopping), or *recovered* (returned because the run was lost: its
pool process died, or the job met a hard time limit after which Celery is to requeue it), which
counts a *strike*, or *dead-lettered* (moved to the dead set, at its last strike). A failure
notification that has to be tried again, and a revoked or expired job whose state the result backend
could not store, are *scheduled* for later.

Three objects stand for one job in flight. The *claim* is its record in the private list of its
owner (this process) in Redis. The *lease* is the local state of the claim
(``owner/in_flight/lease.py``). The *delivery* is the lease together with the channel that delivered
the job (``transport/deliveries.py``); by it a request settles the job.

``bootsteps.Maintenance`` calls ``use_our_request``. Celery's consumer then makes a request of each
message; the gate (``gate.py``) calls ``start`` and ``execute_using_pool``; the pool calls the
callbacks, in the worker's loop (prefork, solo), or in the thread or greenlet that ran the job.

If the worker dies before a job is settled, the job is in the private list, and the reaper of
another worker (or of the next one) recovers it: with a strike if its start was recorded. With early
ack (``acks_late`` off) a job is acked as it begins, and its run is lost with the worker, as in
stock Celery.

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery worker.request:Request.
    run a part of a chord again: _success_was_stored()>=5.7
    requeue what Celery cancels: _already_cancelled _announce_cancelled()
    keep a revoked job until its state is stored: _announce_revoked(r,t,s,e)
    hand its job to the pool: _apply_result
celery
    hand its job to the pool: app.trace:fast_trace_task(task,uuid,request,body,type,encoding)
        app.trace:trace_task_ret(name,uuid,request,body,type,encoding)
    delete the method that hides its start: worker.request:create_request_cls(b,t,p,h,e,app=)
    know which pool it is: concurrency.base:BasePool.is_green concurrency.solo:TaskPool
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, NoReturn
from weakref import ref

from billiard.common import human_status
from billiard.einfo import ExceptionInfo
from celery import __version__ as celery_version
from celery.app import trace
from celery.app.task import Context
from celery.concurrency import solo
from celery.exceptions import (
    InvalidTaskError,
    Reject,
    TaskRevokedError,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerTerminate,
)
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import Request, create_request_cls
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from ..app.chords import is_on_redis
from ..app.guard import limits_of
from ..app.notice import Postponed
from ..app.result_age import is_of_job
from ..app.result_backends import asked_once
from ..model.foreign import class_name, describe, message_of, one_line
from ..model.job import DELIVERY
from ..model.log_text import one_line_each
from ..transport.deliveries import delivery_of
from .in_process import ENDS_OF_WORKERS
from .outcomes import TooLate, error_of, exception_of, name_of_raised, unpacked
from .settling import call_back, settle
from .stopping import end_late_start, is_stopping
from .unreadable_jobs import check_fields

logger = one_line_each(get_logger(__name__))

#: The only strategy (the function that handles a task's messages in Celery's consumer) that is
#: known to start each job by its request. Others (celery-batches) collect messages, run and settle
#: them by themselves, and do not report a start.
ASKS_FIRST = "celery.worker.strategy:default"

EXITED = "Worker exited prematurely: "  # how billiard's message begins

#: Errors of a message for which Celery's consumer discards it.
DISCARDED = (InvalidTaskError, ContentDisallowed, DecodeError)

#: Seconds between two tries to store that a job was revoked, while the result backend is away.
REVOKED_RETRY_S = 10.0

#: Headers of one delivery, which the message of a retry of the job must not have.
OF_THE_DELIVERY = frozenset({DELIVERY, "redelivered"})


class LeasedRequest(Request):
    """The request of a claimed job. It is the first base of the class that a worker's task uses for
    its requests; the second is the task's own request class.

    Celery requeues a job whose pool process was lost, without a count: the job could kill process
    after process. This class recovers the job with a strike, so that the guard can end that.
    """

    acknowledged: bool
    delivery: Any  # a ``Delivery``; None for a message that was not claimed (a broadcast)
    #: Until when the pool may begin (by ``clock`` of ``model/start_permit.py``). 0.0: the gate has
    #: not let the job start.
    deadline = 0.0
    #: Its pool process received it after the deadline, and the gate is to start it again.
    starts_again = False
    #: True for its first caller alone: the pool's thread that begins, or the gate that withdraws
    #: the job. Set by ``ThreadAdapter``.
    try_take: Callable[[], bool] = staticmethod(lambda: True)

    _cut_short = ""  # the reason why its run was cut short
    _killed = False  # the job is in the dead set
    _greenlet_killed = False  # Celery ends the run by killing its greenlet
    _settles = False  # its run is over, and a callback of its end settles it
    _postponed_s = 0.0  # its task asked to be tried again after so many seconds
    _ended_its_worker = False  # its task raised an exception that ends a worker
    _is_terminated = False  # a revoke has ended its run

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Delete the method by which the class that Celery generates for each task hands a job to
        the pool: it calls none of its bases, and would start the job without the gate."""
        super().__init_subclass__(**kwargs)
        generated = cls.__qualname__.startswith(f"{create_request_cls.__name__}.")
        if generated and "execute_using_pool" in vars(cls):
            del cls.execute_using_pool

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        self.delivery = delivery_of(message)
        if type(self).execute_using_pool is not STARTS:
            self._refuse_start(message)
        try:
            self._read(message, *args, **kwargs)
        except DISCARDED:
            raise
        except Exception as exc:
            if self.delivery is not None or getattr(message, "is_read", False):
                raise
            # Each worker that consumes the broadcast would end by it. Celery discards an invalid
            # task, with a line in the log.
            raise InvalidTaskError(f"a field cannot be used: {describe(exc)}") from exc

    def _read(self, message: Any, *args: Any, **kwargs: Any) -> None:
        """Read the message, as Celery's class does, and check its fields."""
        try:
            super().__init__(message, *args, **kwargs)
        except Exception:
            # Celery's own class fails, too, if the message is at fault. If not, the error is that
            # of a request class of the user.
            Request(message, *args, **kwargs)
            message.is_read = True
            raise
        if self.delivery is not None:
            leases = self.delivery.owner.leases
            reports_its_start = self.task.Strategy == ASKS_FIRST
            if reports_its_start:
                leases.reserve(self.delivery.lease)
            else:
                leases.deliver(self.delivery.lease)
                if self.delivery.owner.executor.inline:
                    # The job may run within this call, and block the thread that sends acks.
                    _send_pending(self.delivery.owner)
        check_fields(self)
        request = self.request_dict
        if not OF_THE_DELIVERY.isdisjoint(request):
            # Celery takes what it does not know for the user's, and sends it on with retries.
            custom = Context(request).headers or {}
            request["headers"] = {k: v for k, v in custom.items() if k not in OF_THE_DELIVERY}
        message.is_read = True  # for ``reject_unreadable``: from now on an error is the worker's

    def _refuse_start(self, message: Any) -> NoReturn:
        """End the worker, since Celery hands its jobs to the pool by another method than this
        class's: they would start without the gate. The job is requeued without a strike."""
        message.is_read = True
        error = RuntimeError(
            f"Celery (version={celery_version}) or an instrumentation has replaced "
            f"Request.execute_using_pool (by {type(self).execute_using_pool.__qualname__}, in "
            f"{type(self).execute_using_pool.__module__}), so that jobs would start unchecked "
            "and might run twice. Install a Celery that celery_superfetch supports, or turn the "
            "instrumentation off."
        )
        if self.delivery is not None:
            self.delivery.owner.executor.failure = error
            self.delivery.requeue()
        raise error

    # -- its start

    @property
    def may_start(self) -> bool:
        """True if this worker still may start the job."""
        delivery = self.delivery
        if delivery.owner.leases.is_former(delivery.lease):
            return False
        # With early ack a job that its pool process received too late was acked before: no other
        # worker can have it.
        return bool(self.acknowledged or delivery.lease.may_start)

    def start(self) -> float:
        """Record that the job runs; return its deadline (``clock``), 0 if it may not start now."""
        leases, lease = self.delivery.owner.leases, self.delivery.lease
        if self.acknowledged:
            self.deadline = leases.deadline(lease)
        else:
            # With early ack (``acks_late`` off) the job is acked as it begins: it needs no start
            # record, the mark in Redis by which a reaper knows that it ran.
            self.deadline = leases.start(lease, record=self.task.acks_late)
        return self.deadline

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """Hand the job to the pool, to begin before its deadline. Queue it at the gate if the gate
        has not let it start: a strategy of the user has called this.

        Raises:
            RuntimeError: the pool of processes is closed, by a cold shutdown.
            TaskRevokedError: the job was revoked.
        """
        delivery = self.delivery
        if delivery is None:
            return super().execute_using_pool(pool, **kwargs)
        gate, task = delivery.owner.executor, self.task
        if not self.deadline:
            return gate.submit(self)
        accept = gate.adapter.accept_callback(self)
        if self.revoked():
            raise TaskRevokedError(self.id)
        hard, soft = self.time_limits
        target, args = gate.adapter.call(self)
        result = pool.apply_async(
            target,
            args,
            accept_callback=accept,
            timeout_callback=self.on_time_limit,
            callback=self.on_outcome,
            error_callback=self.on_lost,
            soft_timeout=soft or task.soft_time_limit,
            timeout=hard or task.time_limit,
            correlation_id=self.id,
        )
        if result is None and gate.prefork:
            raise RuntimeError("the pool is closed and takes no job")
        self._apply_result = None if result is None else ref(result)
        return result

    def job(self, *, decoded: bool = False) -> tuple[Any, ...]:
        """Return the arguments of ``run_job``. ``decoded``: with ``decoded_body``, which need not
        be one that can be pickled."""
        tracer = trace.fast_trace_task if self.app.use_fast_trace_task else trace.trace_task_ret
        body, content_type, encoding = self.body, self.content_type, self.content_encoding
        if decoded:
            body, content_type, encoding = self.decoded_body, None, None
        call = self.type, self.id, self.request_dict, body, content_type, encoding
        return self.deadline, self._claim(), tracer, *call

    @property
    def decoded_body(self) -> Any:
        """The body of its message as Celery has decoded it: the arguments, and the signatures that
        follow the job (callbacks, errbacks, chain, chord)."""
        return self.message.payload if self.content_type else self.body

    def _claim(self) -> tuple[Any, ...]:
        """Return the fields of the job's ``Claim``, for the process that runs it. That process
        publishes the job's steps (the messages that a job sends as it ends), each of them once,
        while the claim exists. With early ack the fields are empty: the claim ends as the job
        begins, and its steps are published as in stock Celery."""
        delivery, claimed = self.delivery, self.delivery.lease.claimed
        (job, counters), token = claimed, claimed.token
        if self.acknowledged or not self.task.acks_late:
            return "", "", "", token
        database, key = delivery.channel.database_name, delivery.owner.private_lists.key_of(job)
        if counters is None:
            return database, key, job.claim_id, token
        return database, key, job.claim_id, token, counters.steps, counters.first_claimed_at

    # -- callbacks of the pool

    def on_outcome(self, outcome: Any) -> None:
        """Settle the job by an outcome that the pool reports."""
        # Here, and not in ``_settle_by``: a greenlet makes that call later, and a lost connection
        # may cancel the job before.
        self._settles = not isinstance(outcome, TooLate)
        call_back(self, self._settle_by, outcome)

    def on_lost(self, exc_info: Any) -> None:
        """Settle the job after the loss of its pool process."""
        call_back(self, self.on_failure, exc_info)

    def on_time_limit(self, soft: bool, timeout: float) -> None:
        """Settle the job at its hard time limit; log a soft one."""
        report = partial(self.on_timeout, soft=soft, timeout=timeout)
        self._settles = self._settles or not soft  # here, as in ``on_outcome``
        call_back(self, report, is_end=not soft)

    def _settle_by(self, outcome: Any) -> None:
        gate = self.delivery.owner.executor
        if isinstance(outcome, TooLate):
            gate.redispatch(self)
            return
        error = error_of(outcome)
        if error is not None:
            self.on_failure(error)
            return
        outcome = unpacked(outcome)
        gate.run_counts.count_end(self.delivery.job.queue_list, self.type, outcome)
        self.on_success(outcome)

    # -- its end

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """End the run of a job and requeue it: called at a cold shutdown and at a lost
        connection."""
        if pool.is_green and self._settles:
            return  # its outcome is known: it is not cancelled, and does not run again
        self._greenlet_killed = pool.is_green
        # Celery sets this only after a call of the result backend. If the backend was away, the end
        # of the pool process would then count as a revocation, whose ack loses the job.
        self._already_cancelled = True
        try:
            super().cancel(pool, *args, **kwargs)
        except NotImplementedError:
            if not isinstance(pool, solo.TaskPool):
                self._already_cancelled = False
                logger.warning(
                    "Job %s cannot be ended, since it runs in a thread. The worker waits until it "
                    "ends.",
                    self.title,
                )
                return
            # This is a signal handler that has interrupted the job itself: if Celery's own error
            # was raised here, the job would fail by it.
            self._announce_cancelled(**{k: kwargs[k] for k in kwargs if k == "emit_retry"})
            if not self.acknowledged:
                self._requeue()
            raise WorkerTerminate(EX_FAILURE) from None

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> None:
        """Store and announce that the run is ended. Celery does not catch an error of the result
        backend. Celery's handler of a cold shutdown would end by it, and the worker would wait for
        its jobs; at a lost connection, the worker would end."""
        try:
            with asked_once(self.task.backend):
                super()._announce_cancelled(*args, **kwargs)
        except Exception as exc:
            logger.warning(
                "The run of job %s is ended, since its worker stops or lost its connection, but "
                "that could not be announced: %s. Its caller and monitors may miss that. Check "
                "the result backend.",
                self.title,
                describe(exc),
            )

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the run of a job that is revoked; if it has not begun, Celery calls this again then.
        Also for a job that is revoked by a header, whose id ``state.revoked`` lacks."""
        # Set first: Celery then calls the result backend. If that was away, the end of the pool
        # process would count as a lost run, with a strike. And this call kills a greenlet.
        self._is_terminated = bool(self.time_start)
        try:
            super().terminate(pool, signal)
        except NotImplementedError:  # of a thread, which goes on
            self._is_terminated = False
            raise

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Store and announce that the job is revoked or has expired, and ack it. If that fails
        before its run, schedule the job: it is discarded when the result backend is back.

        Celery does not catch an error of the backend. An error of Redis would be taken for a lost
        connection to the broker, and another error would end the worker. The job would be requeued,
        and would do the same to the next worker.
        """
        try:
            with asked_once(self.task.backend):
                super()._announce_revoked(reason, terminated, signum, expired)
        except Exception as exc:
            if terminated:  # ``on_failure`` settles it as its run ends
                raise
            if self.delivery is None or self.acknowledged:
                # A broadcast, or a job with early ack that has returned from the pool. It cannot be
                # scheduled, so it ends without a result.
                logger.warning(
                    "Job %s is discarded (%s), but the result backend could not store that: %s. "
                    "Check the result backend. The job does not run, and its caller may wait.",
                    self.title,
                    reason,
                    describe(exc),
                )
                self.acknowledge()
                return
            self.acknowledged = True
            self.delivery.postpone(REVOKED_RETRY_S)
            logger.warning(
                "Job %s is to be discarded (%s), but the result backend could not store that: %s. "
                "It is tried again in %d s. Check the result backend. The job does not run "
                "meanwhile.",
                self.title,
                reason,
                describe(exc),
                REVOKED_RETRY_S,
            )

    @property
    def title(self) -> str:
        """Its task and id as one line for a log, whatever its sender has named them."""
        return one_line(self.humaninfo())

    @property
    def is_cancelled(self) -> bool:
        """True if Celery ends its run, at a cold shutdown or at a lost connection."""
        return bool(self._already_cancelled)

    @property
    def was_ended_by_celery(self) -> bool:
        """True if Celery has ended the run of this job: at a revocation, a cold shutdown or a lost
        connection."""
        return bool(self.is_cancelled or self._is_terminated or self.id in state.revoked)

    def _requeue(self) -> None:
        """Requeue the job after its run was ended on purpose. If the worker is stopping, the job is
        only marked as cut short: the channel requeues it with the others when it closes."""
        if (delivery := self.delivery) is None:
            return
        if is_stopping(delivery.owner):
            if delivery.is_open:
                delivery.owner.leases.cut_short(delivery.lease)
            return
        self.acknowledged = True
        delivery.requeue()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        except Exception:  # of a request class of the user; billiard would drop it without a word
            logger.exception(
                "Job %s has started, but a callback of its start failed: monitors may miss its "
                "start. The traceback follows.",
                self.title,
            )
            if not self.task.acks_late:
                self.acknowledge()  # if it stayed unacked, it would count against the prefetch
        if self.delivery is not None:
            end_late_start(self.delivery.owner)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        exc = exception_of(exc_info)
        is_own_end = self.delivery is not None and not self.was_ended_by_celery
        self._ended_its_worker = is_own_end and isinstance(exc, ENDS_OF_WORKERS)
        if is_own_end and isinstance(exc, (Terminated, SystemExit, KeyboardInterrupt)):
            # Either the pool process was sent a signal for an earlier job, and died in this one:
            # Celery would take this job for revoked, and its ack would lose it. Or the task ended
            # its process: Celery 5.6 would take that for a failure or for a loss, depending on the
            # version of billiard. Both are treated as the loss of a pool process.
            status = exc.args[0] if exc.args else 0
            status = status if isinstance(status, int) else 1
            # billiard reports a SIGKILL as Terminated(9), and as the exit status -9.
            how = human_status(-status if isinstance(exc, Terminated) else status)
            if self._ended_its_worker:
                how = type(exc).__name__
            elif isinstance(exc, KeyboardInterrupt):
                how = class_name(exc)
            try:
                raise WorkerLostError(EXITED + how)
            except WorkerLostError as lost:
                exc, exc_info = lost, ExceptionInfo()
        if isinstance(exc, MemoryError):
            # Celery would raise it in this process, and one worker after another would end by it.
            exc_info.exception = RuntimeError(describe(exc))
        if isinstance(exc, TimeLimitExceeded):
            limit = exc.args[0] if exc.args else None  # a task may raise it, too, with any value
            seconds = limit if type(limit) in (int, float) else "?"
            self._cut_short = f"hard time limit ({seconds} s)"
        elif isinstance(exc, Postponed):
            self._postponed_s = exc.seconds
        elif not isinstance(exc, (Reject, Terminated)):
            # A task's own Reject is on purpose; all else that ends in a requeue is a lost process.
            processes = getattr(self.delivery and self.delivery.owner.executor, "prefork", True)
            # A thread or a greenlet is not lost: such an error was raised by its task.
            ended = processes and isinstance(exc, WorkerLostError)
            if ended:
                why = message_of(exc).removeprefix(EXITED).partition(" Job: ")[0]
                self._cut_short = f"pool process lost: {why}"
            else:
                self._cut_short = f"it raised {name_of_raised(exc)}"
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        except Exception:  # for example, the result backend is away; but the run has ended
            self.reject(requeue=bool(self._cut_short))
            raise
        finally:
            if self.is_cancelled and not self.acknowledged:
                # Only now has its pool process ended: before, the job could run twice at once.
                self._requeue()

    def _success_was_stored(self) -> Any:
        """Return the stored success for which Celery 5.7 acks a job that lost its pool process.

        False for a part of a chord: the chord may not have counted the part yet, or the part may
        have to publish the chord's body, so it runs again. And False for the result of an older
        job: Celery looks by the task id, which a sender may use again, and this job would end
        without a run.
        """
        if self.chord and is_on_redis(self.task.backend):
            return False
        meta = super()._success_was_stored()
        if not meta or self.delivery is None:
            return meta
        return meta if is_of_job(meta, self.delivery.lease.claimed.first_claimed) else False

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        if soft:
            return super().on_timeout(soft, timeout)
        if self._killed:
            return None  # its result says that it was killed; the timeout must not replace that
        self._cut_short = f"hard time limit ({timeout} s)"
        try:
            return super().on_timeout(soft, timeout)
        finally:
            if not self.acknowledged:
                # Before 5.7 Celery waits for the loss of the pool process to settle the job. A
                # greenlet has no process that could be lost.
                self.reject(requeue=True)

    def acknowledge(self) -> None:
        delivery: Any = self.delivery
        poller = None if delivery is None else delivery.channel.fetch.poller
        if self._greenlet_killed and not self.acknowledged:
            # Celery takes the end of a killed greenlet for success; its ack would lose the job.
            self._requeue()
        else:
            # An early ack, and the job is about to block the thread that sends acks.
            blocks = poller and delivery.owner.executor.inline and not self.task.acks_late
            acks_now = poller and (blocks or not poller.inline)
            if acks_now and not self.acknowledged and delivery.is_open:
                # Celery would ack in the loop's next tick. If the job is acked at once, its ack is
                # sent with the start record of the next job, in one round trip.
                delivery.ack()
                self.acknowledged = True
                if blocks:
                    # If it were sent after the job, a job whose worker is killed would run twice.
                    _send_pending(delivery.owner)
            super().acknowledge()
        if poller:
            # Before 5.7 a call that a thread or a greenlet queues does not wake Celery's loop.
            poller.wake(end_round=True)

    def reject(self, requeue: bool = False) -> Any:
        """Reject the job, as Celery's method does. But if a run that was cut short would only be
        requeued, recover the job instead, with a strike (or a stop), or dead-letter it."""
        if requeue and self.is_cancelled:
            return None  # ``on_failure`` requeues it
        delivery = self.delivery
        if delivery is not None and self._postponed_s and not self.acknowledged:
            self.acknowledged = True
            delivery.postpone(self._postponed_s)
            self.send_event("task-rejected", requeue=True)
            return None
        if delivery is None or self.acknowledged or not (requeue and self._cut_short):
            return super().reject(requeue=requeue)
        self.acknowledged = True
        stopping = is_stopping(delivery.owner) and not self._ended_its_worker
        settle_run = partial(delivery.owner.settlement.recover_or_kill, stopping=stopping)
        try:
            if settle(delivery, settle_run, self._cut_short, self.app, limits_of(self.app)):
                self._killed = True
            # As Celery does: else monitors see the job received twice, and nothing in between.
            self.send_event("task-rejected", requeue=not self._killed)
        except Exception:
            logger.exception(
                "Job %s could not be requeued after its run was lost (%s): it stays in Redis, in "
                "this worker's private list, and is recovered when the worker ends. Restart the "
                "worker.",
                self.title,
                self._cut_short,
            )
        return None


#: The method by which jobs are handed to the pool. A request checks that its class still has it.
STARTS = LeasedRequest.execute_using_pool


def _send_pending(owner: Any) -> None:
    """Send the pending acks of an owner now. If that fails, they stay pending, and are sent
    later."""
    with suppress(RedisError, OSError):
        owner.leases.post()


@cache
def _leased(base: Any) -> Any:
    """Return the request class of a task: ``LeasedRequest`` in front of the task's own class."""
    return type(base.__name__, (LeasedRequest, base), {})


def use_our_request(worker: Any) -> None:
    """Make each task of a worker use ``LeasedRequest``, in front of the task's own class."""
    consumer, update = worker.consumer, worker.consumer.update_strategies

    def update_strategies() -> None:
        for task in worker.app.tasks.values():
            base = symbol_by_name(task.Request)
            if not issubclass(base, LeasedRequest):
                task.Request = _leased(base)
        update()

    consumer.update_strategies = update_strategies
