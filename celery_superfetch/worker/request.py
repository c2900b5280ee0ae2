"""The request class of a worker. A request hands its job to the pool when the gate lets it start,
and settles the job by the outcome that the pool reports: ack; or, if the run was cut short (its
pool process was lost, a hard time limit, a stop), requeue, recover or dead-letter.

Celery's consumer makes a request of each message. The pool's callbacks run in the worker's loop
(prefork, solo), or in the thread or greenlet that ran the job. If the worker dies before a job is
settled, the job is in the private list and is recovered.

Foreign names:

celery worker.request:Request.
    settle a job: acknowledge() on_failure(exc_info) on_timeout(soft,timeout) reject(requeue=)
    run a part of a chord again: chord _success_was_stored()>=5.7
    requeue what Celery cancels: cancel(pool) _already_cancelled _announce_cancelled()
    tell a revoked job from a lost process: _already_revoked
    hand its job to the pool: execute_using_pool(pool)~on_accepted revoked() time_limits
        _apply_result
    go on where a callback of its start fails: on_accepted(pid,time)
celery
    hand its job to the pool: app.trace:fast_trace_task(task,uuid,request,body,type,encoding)
        app.trace:trace_task_ret(name,uuid,request,body,type,encoding)
    delete the method that hides its start: worker.request:create_request_cls(b,t,p,h,e,app=)
    serve each task by this class: worker.consumer.consumer:Consumer.update_strategies()
        app.task:Task.Request app.task:Task.Strategy~celery.worker.strategy:default
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
from kombu.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from ..app.chords import is_on_redis
from ..app.guard import limits_of
from ..app.notice import Postponed
from ..app.result_age import is_of_job
from ..model.foreign import class_name, describe, message_of, one_line
from ..model.job import DELIVERY
from ..model.log_text import one_line_each
from ..transport.deliveries import delivery_of
from .in_process import ENDS_OF_WORKERS
from .outcomes import TooLate, error_of, exception_of, name_of_raised, unpacked
from .settling import call_back
from .stopping import end_late_start, told_to_stop
from .unreceivable import check_fields, settle

logger = one_line_each(get_logger(__name__))

#: The only strategy that is known to hand a request to the pool before it runs. Others (batches)
#: keep messages of their own, and settle those themselves.
ASKS_FIRST = "celery.worker.strategy:default"

EXITED = "Worker exited prematurely: "  # how billiard begins

#: Headers of one delivery, which a retry of the job must not carry on.
OF_THE_DELIVERY = frozenset({DELIVERY, "redelivered"})


class LeasedRequest(Request):
    """The request of a job that has a lease. It is the first base of the class that a worker's task
    uses for its requests; the second is the task's own request class.

    Celery requeues a job whose pool process was lost, without a count: the job could kill process
    after process. This class recovers the job with a strike, so that the guard can end that.
    """

    delivery: Any  # a ``Delivery``; None for what is not fetched reliably
    deadline = 0.0  # until when the pool may begin (``clock``); 0.0: the gate has not let it start
    starts_again = False  # its pool process received it too late
    #: True for its first caller alone: the pool's thread that begins, or the gate that withdraws
    #: the job. Set by ``ThreadAdapter``.
    take: Callable[[], bool] = staticmethod(lambda: True)

    _cut_short = ""  # the reason why its run was cut short
    _killed = False  # it is in the dead set
    _greenlet_killed = False
    _settles = False  # its run is over, and its greenlet is about to settle it
    _postponed_s = 0.0  # its task asked to be tried again after so many seconds
    _ended_its_worker = False  # its task raised an exception that ends a worker

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
            super().__init__(message, *args, **kwargs)
        except Exception:
            Request(message, *args, **kwargs)  # which fails, too, if that is the message's fault
            message.is_read = True
            raise
        if self.delivery is not None:
            leases = self.delivery.owner.leases
            reports_its_start = self.task.Strategy == ASKS_FIRST
            if reports_its_start:
                leases.reserve(self.delivery.lease)
            else:
                leases.deliver(self.delivery.lease)
                if self.delivery.owner.runner.inline:
                    # The job may run within this call, and block the thread that sends acks: those
                    # that are pending are sent now. If that fails, they stay pending.
                    with suppress(RedisError, OSError):
                        leases.post()
        check_fields(self)
        request = self.request_dict
        if not OF_THE_DELIVERY.isdisjoint(request):
            # Celery takes what it does not know for the user's, and sends it on with retries.
            custom = Context(request).headers or {}
            request["headers"] = {k: v for k, v in custom.items() if k not in OF_THE_DELIVERY}
        message.is_read = True  # ``unreceivable.refuses``: from now on an error is the worker's

    def _refuse_start(self, message: Any) -> NoReturn:
        """End the worker, since Celery hands its jobs to the pool by another method than this
        class's: they would start without the gate. The job is requeued without a strike."""
        message.is_read = True
        error = RuntimeError(
            "Jobs would start without celery_superfetch's gate, and run twice after a lost "
            f"connection: Celery (version={celery_version}) or an instrumentation has replaced "
            f"Request.execute_using_pool (by {type(self).execute_using_pool.__qualname__}, in "
            f"{type(self).execute_using_pool.__module__}). Install a Celery that "
            "celery_superfetch supports, or turn the instrumentation off."
        )
        if self.delivery is not None:
            self.delivery.owner.runner.failure = error
            self.delivery.requeue()
        raise error

    # -- its start

    @property
    def may_start(self) -> bool:
        """Whether this worker still may start the job."""
        delivery = self.delivery
        if delivery.owner.leases.is_former(delivery.lease):
            return False
        # With early ack a job that came back too late is settled already, and in no other worker.
        return bool(self.acknowledged or delivery.lease.may_start)

    def start(self) -> float:
        """Record that the job runs; return its deadline (``clock``), 0 if it may not start now."""
        leases, lease = self.delivery.owner.leases, self.delivery.lease
        if self.acknowledged:
            self.deadline = leases.deadline(lease)
        else:
            # With early ack the job may be settled before it runs: no start record is needed.
            self.deadline = leases.start(lease, record=self.task.acks_late)
        return self.deadline

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """Hand the job to the pool, to begin before its deadline. Queue it at the gate if the gate
        has not let it start: a strategy of the user has called this.

        Raises:
            TaskRevokedError: the job was revoked.
        """
        delivery = self.delivery
        if delivery is None:
            return super().execute_using_pool(pool, **kwargs)
        gate, task = delivery.owner.runner, self.task
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
        """The body of its message as Celery has decoded it: arguments, and what follows the job."""
        return self.message.payload if self.content_type else self.body

    def _claim(self) -> tuple[Any, ...]:
        """Return the fields of the job's ``Claim``, for the process that runs it. With early ack
        they are empty: the claim ends before the run, and the job's steps are published as in
        stock."""
        delivery, claimed = self.delivery, self.delivery.lease.claimed
        (job, counters), token = claimed, claimed.token
        if self.acknowledged or not self.task.acks_late:
            return "", "", "", token
        place, key = delivery.channel.place, delivery.owner.private_lists.key_of(job)
        if counters is None:
            return place, key, job.claim_id, token
        return place, key, job.claim_id, token, counters.steps, counters.claimed_at

    # -- callbacks of the pool

    def on_outcome(self, outcome: Any) -> None:
        """Settle the job by an outcome that the pool reports."""
        self._call_back(self._settle_by, outcome)

    def on_lost(self, exc_info: Any) -> None:
        """Settle the job after the loss of its pool process."""
        self._call_back(self.on_failure, exc_info)

    def on_time_limit(self, soft: bool, timeout: float) -> None:
        """Settle the job at its hard time limit; log a soft one."""
        self._call_back(self.on_timeout, soft=soft, timeout=timeout)

    def _call_back(self, callback: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        """Call a callback; the job has left the pool after it, unless it is a soft limit."""
        gate = self.delivery.owner.runner
        try:
            call_back(self, gate.inline, callback, *args, **kwargs)
        finally:
            if gate.adapter.ends_by_callback and not kwargs.get("soft"):
                gate.ended(self)

    def _settle_by(self, outcome: Any) -> None:
        gate = self.delivery.owner.runner
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
            return  # if it were killed while it waits for the server, the job would not be settled
        self._greenlet_killed = pool.is_green
        # Celery sets this after it has told the result backend. If that were away, the end of the
        # pool process would count as a revocation, whose ack loses the job.
        self._already_cancelled = True
        try:
            super().cancel(pool, *args, **kwargs)
        except NotImplementedError:
            if not isinstance(pool, solo.TaskPool):
                self._already_cancelled = False
                logger.warning(
                    "Job %s cannot be ended: it runs in a thread. The worker waits for it.",
                    self.title,
                )
                return
            # This signal handler runs on top of the job: Celery's own error would fail the job.
            self._announce_cancelled(**{k: kwargs[k] for k in kwargs if k == "emit_retry"})
            if not self.acknowledged:
                self._requeue()
            raise WorkerTerminate(EX_FAILURE) from None

    @property
    def title(self) -> str:
        """Its task and id as one line for a log, whatever its sender has named them."""
        return one_line(self.humaninfo())

    @property
    def is_cancelled(self) -> bool:
        """True if Celery ends its run, at a cold shutdown or at a lost connection."""
        return bool(self._already_cancelled)

    @property
    def _was_told(self) -> bool:
        """Whether Celery told the child of this job to end."""
        return bool(self.is_cancelled or self._already_revoked or self.id in state.revoked)

    def _requeue(self) -> None:
        """Requeue the job after its run was ended on purpose. If the worker is stopping, the
        channel requeues it with the others when it closes."""
        if (delivery := self.delivery) is None:
            return
        if told_to_stop(delivery.owner):
            if delivery.is_open:  # it goes back with the others, in order, when the channel closes
                delivery.owner.leases.cut_short(delivery.lease)
            return
        self.acknowledged = True
        if self._greenlet_killed:
            # The kill may reach this greenlet in the middle of a wait: the maintenance thread
            # requeues.
            delivery.owner.overdue.append(delivery.requeue)
        else:
            delivery.requeue()

    def revoked(self) -> Any:
        """Return whether the job is revoked; False if ownership was lost: another worker announces
        its end."""
        delivery = self.delivery
        gone = delivery is not None and delivery.lease.is_gone
        return (self.acknowledged or not gone) and super().revoked()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        try:
            super().on_accepted(pid, time_accepted)
        except Exception:  # of a request class of the user; billiard would drop it without a word
            logger.exception(
                "Job %s began, but a callback of its start failed: a monitor may not hear of it.",
                self.title,
            )
            if not self.task.acks_late:
                self.acknowledge()  # else it would keep its place in the prefetch
        if self.delivery is not None:
            end_late_start(self.delivery.owner)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        exc = exception_of(exc_info)
        own = self.delivery is not None and not self._was_told
        self._ended_its_worker = own and isinstance(exc, ENDS_OF_WORKERS)
        if own and isinstance(exc, (Terminated, SystemExit, KeyboardInterrupt)):
            # The pool process was sent a signal for an earlier job, and died in this one: Celery
            # would take this one for revoked, and its ack would lose it. Or the task ended its
            # process: Celery 5.6 would take that for a failure, or a loss, by billiard's version.
            status = exc.args[0] if exc.args else 0
            how = human_status(status if isinstance(status, int) else 1)
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
            processes = getattr(self.delivery and self.delivery.owner.runner, "prefork", True)
            # A thread or a greenlet is not lost: such an error was raised by its task.
            ended = processes and isinstance(exc, WorkerLostError)
            if ended:
                why = message_of(exc).removeprefix(EXITED).partition(" Job: ")[0]
                self._cut_short = f"pool process lost: {why}"
            else:
                self._cut_short = f"it raised {name_of_raised(exc)}"
        try:
            return super().on_failure(exc_info, *args, **kwargs)
        except Exception:  # the result backend is away, say; the run is over all the same
            self.reject(requeue=bool(self._cut_short))
            raise
        finally:
            if self.is_cancelled and not self.acknowledged:
                # Only now has its pool process ended: before, the job could run twice at once.
                self._requeue()

    def _success_was_stored(self) -> Any:
        """Return the stored success for which Celery 5.7 acks a job that lost its pool process.

        A part of a chord may not have been counted by then, or have the body to publish: it runs
        again. And Celery asks by the task id, which senders use again: the success of an older job
        would end this one without a run.
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
                # Before 5.7 Celery leaves this to the loss of the process, which a greenlet has
                # not.
                self.reject(requeue=True)

    def acknowledge(self) -> None:
        self._settles = True
        delivery: Any = self.delivery
        poller = None if delivery is None else delivery.channel.fetch.poller
        if self._greenlet_killed and not self.acknowledged:
            # Celery takes the end of a killed greenlet for success; its ack would lose the job.
            self._requeue()
        else:
            if poller and not (self.acknowledged or poller.inline) and delivery.is_open:
                # Celery would ack in the loop's next tick. Now, the next job's start record is sent
                # with this ack, in one round trip.
                delivery.ack()
                self.acknowledged = True
            super().acknowledge()
        if poller:
            # Before 5.7 a call that a thread or a greenlet queues does not wake Celery's loop.
            poller.wake(end_round=True)

    def reject(self, requeue: bool = False) -> Any:
        if requeue and self.is_cancelled:
            return None  # ``on_failure`` requeues it
        self._settles = True
        delivery = self.delivery
        if delivery is not None and self._postponed_s and not self.acknowledged:
            self.acknowledged = True
            delivery.postpone(self._postponed_s)
            self.send_event("task-rejected", requeue=True)
            return None
        if delivery is None or self.acknowledged or not (requeue and self._cut_short):
            return super().reject(requeue=requeue)
        self.acknowledged = True
        stopping = told_to_stop(delivery.owner) and not self._ended_its_worker
        way = partial(delivery.owner.settlement.recover_or_kill, stopping=stopping)
        try:
            if settle(delivery, way, self._cut_short, self.app, limits_of(self.app)):
                self._killed = True
            # As Celery does: else monitors see the job received twice, and nothing in between.
            self.send_event("task-rejected", requeue=not self._killed)
        except Exception:
            logger.exception(
                "Job %s lost its run (%s) and could not be given back: it stays in this worker's "
                "private list, and is recovered when the worker ends.",
                self.title,
                self._cut_short,
            )
        return None


#: The method that hands a job to the pool, for the check that no other one is in force.
STARTS = LeasedRequest.execute_using_pool


@cache
def _leased(base: Any) -> Any:
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
