"""The former gate, behind ``handover.BY_HANDOVER``, which patches ``pool.apply_async``.

Celery's requests call ``pool.apply_async``, which is the gate's. The gate keeps the job until a
slot is free, records on the server that it runs, and hands it to the pool with a deadline: until
then no reaper can have declared the worker dead and moved the job. A job that its pool process
receives later is not run, and comes back to the gate.

If the worker dies, the jobs that the gate keeps were not recorded as running, and are recovered
without a strike.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import ref

from celery.concurrency import solo, thread
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from ..app.notice import Notices
from ..model.config import ANNOUNCE_TASK
from ..model.foreign import message_of
from ..model.job import digest
from ..model.log_text import one_line_each
from ..model.process import start_time
from ..owner.in_flight.executor import Executor
from ..owner.process_owners import owners_of_process
from . import unreceivable
from .forked_children import end_forked_child
from .gate import sleep_until
from .handover import Handover
from .in_process import settle_failures
from .outcomes import exception_of, run_and_check, run_and_pack
from .pool_slots import PoolSlots
from .prefork import drop_unsendable, mend, request_of
from .run_counts import RunCounts
from .run_job import run_job
from .settling import call_back, report
from .stopping import told_to_stop

logger = one_line_each(get_logger(__name__))

#: The callbacks by which a pool reports the end of a job.
CALLBACKS_OF_END = ("callback", "error_callback", "timeout_callback")


def _log_lost_batch(target: Any, exc_info: Any) -> None:
    """Log the loss of a run of many jobs, for a library (batches) that has no callback for it."""
    logger.error(
        "A batch that %s ran was lost, or failed: %s. Jobs that it has not acked stay in flight "
        "until this worker ends, and run again then. Restart it.",
        getattr(target, "__qualname__", target),
        message_of(exception_of(exc_info)),
    )


class HandoverGate(Executor):
    """The gate of one worker. Any thread may call it: the loop, a pool's threads, timers."""

    endless = True
    notice: Notices
    _turns = 0
    _look_again = False  # ``pump`` was called while another thread was in it

    def __init__(self, worker: Any) -> None:
        self.worker, self.pool, self.node = worker, worker.pool, worker.hostname
        self.pid = os.getpid()
        self.notice, self.run_counts = Notices(worker.app), RunCounts()
        self.tasks = digest(" ".join(sorted(worker.app.tasks)).encode())[:12]
        self.green = self.pool.is_green
        self.inline, self.threads = isinstance(self.pool, solo.TaskPool), False
        self.threads = isinstance(self.pool, thread.TaskPool)
        self.prefork = self.pool.uses_semaphore and not self.pool.options.get("threads", True)
        self._waiting: deque[Handover] = deque()
        self.out: set[Handover] = set()
        self._turn = threading.Lock()  # held by the thread that is in ``pump``
        self._apply, self.pool.apply_async = self.pool.apply_async, self.apply_async
        self._process, worker._process_task = worker._process_task, self._process_task
        if worker.process_task == self._process:  # ``_process_task_sem`` reads the attribute
            worker.process_task = worker.consumer.on_task_request = self._process_task
        self.pool_slots: PoolSlots | None = None
        if self.prefork:
            mend(self.pool, self.requeue, worker.hub.call_later)
            self.pool_slots = PoolSlots(self.pool, self.pump)

    @property
    def slots(self) -> int:
        """How many jobs may run at once. Not ``num_processes`` of a gevent pool: on Celery 5.5 it
        is the number of those that run."""
        return int(self.pool.num_processes if self.pool.uses_semaphore else self.pool.limit)

    def pids(self) -> Sequence[tuple[int, str]]:
        """Return (pid, start time) of each pool process, for the owner record."""
        processes = getattr(self.pool._pool, "_pool", None)
        pids = [process.pid for process in list(processes or ())]
        return sorted((pid, start_time(pid) or "") for pid in pids if pid is not None)

    def running(self) -> list[Any]:
        """Return the requests whose jobs are in the pool."""
        return [handover.request for handover in list(self.out)]

    def on_turn(self) -> None:
        end_forked_child(self.pid)
        if self.failure is not None:
            raise self.failure
        self._turns += 1

    def on_close(self) -> None:
        self._turns = 0

    def turns(self) -> int:
        """Return the number of ticks of the worker's loop; 0 while a job may block the loop, so
        that its silence says nothing."""
        return 0 if (self.inline or self.green) and state.active_requests else self._turns

    def reserve(self) -> int:
        """Return how many jobs wait for a slot, without those that wait for an ETA or a rate
        limit."""
        # Before 5.7 Celery forgets at a reconnect that running jobs were reserved.
        return max(0, len(state.reserved_requests) - len(state.active_requests))

    def not_before(self, task: str, owner: Any) -> float:
        """Return when a job of this task may run at the earliest (s since the epoch; 0: now)."""
        return self.notice.not_before(owner.database) if task == ANNOUNCE_TASK else 0.0

    def is_registered(self, task: str) -> bool:
        """Return whether the worker has a task of this name."""
        return task in self.worker.app.tasks

    def busy(self, unsettled: bool) -> bool:
        """Return whether the pool has a job."""
        return bool(self.out)

    def free(self) -> int:
        """Return the number of slots for which no job of this worker waits."""
        free = self.slots - max(len(state.reserved_requests), len(self.out) + len(self._waiting))
        if self.pool_slots is None:
            return free
        return min(free, self.pool_slots.idle_count - len(self._waiting))

    def _has_slot(self, alone: bool) -> bool:
        """Return whether a job would start at once; ``alone``: a suspect runs alone in this worker.

        Jobs in ``out`` count as well as processes: a pool process is idle a moment before its job
        leaves ``out``, and if another job started then, its start record would be sent without that
        job's ack, in a round trip of its own.
        """
        if len(self.out) >= (1 if alone else self.slots):
            return False
        return self.pool_slots is None or self.pool_slots.idle_count > 0

    def _process_task(self, request: Any) -> None:
        """Process a request, in place of the worker's method of this name. Timers call it, too."""
        try:
            if self.green and request.eta:
                sleep_until(request.eta.timestamp())
            self._process(request)
        except Exception as exc:
            if not self._takes_back(request, exc):
                raise

    def apply_async(self, target: Any, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Queue a job for the pool, in place of the pool's method of this name. What is not a job
        of a claim (a batch, a task of another transport) goes to the pool at once."""
        end_forked_child(self.pid)
        if not self.pool.uses_semaphore:
            target, options = settle_failures(target, options, self.inline)
        request = request_of(options.get("accept_callback"))
        delivery = getattr(request, "delivery", None)  # only requests of ours have one
        if delivery is None:
            for owner in owners_of_process() if self.inline else ():
                # The run blocks this thread. Acks that cannot be sent before it are kept and sent
                # again.
                with suppress(RedisError, OSError):
                    owner.leases.post()
            if self.prefork:
                options.setdefault("error_callback", partial(_log_lost_batch, target))
            return self._apply(target, args, kwargs or {}, **options)
        handover = Handover(delivery, request, target, args, kwargs or {}, options)
        self._waiting.append(handover)
        self.pump()
        handover.waited = True
        # Celery keeps a weak reference to what this returns.
        return (result := request._apply_result) and result()

    def pump(self) -> None:
        """Start the jobs that may start now. If another thread is in here, it starts them: the gate
        never waits for the lock, since a callback may call this in the middle of a start."""
        self._look_again = True
        while self._look_again and self._waiting and self._turn.acquire(blocking=False):
            self._look_again = False
            try:
                while (chosen := self._choose()) is not None:
                    self._hand_over(*chosen)
            finally:
                self._turn.release()
        if self._waiting and self.pool_slots is not None:
            self.pool_slots.report_loading(len(self._waiting))

    def _choose(self) -> tuple[Handover, float] | None:
        """Take the next job that may start from the queue, with its deadline; None if none may
        start now. Requeue on the way what must not start in this worker any more."""
        while self._waiting:
            first = self._waiting[0]
            alone = first.owner.suspects.solo
            room = self._has_slot(alone is not None)
            if not first.is_ours:
                # What became of it is logged by `owner/in_flight/lost_jobs.py`.
                self._drop(self._waiting.popleft(), "this worker no longer holds it", logging.DEBUG)
            elif alone is not None and first.lease is not alone and not first.request.acknowledged:
                self._drop(self._waiting.popleft(), "another runs alone here")
            elif room and not told_to_stop(first.owner) and (until := first.may_begin()):
                self.out.add(self._waiting.popleft())
                return first, until
            else:
                break
        return None

    def _hand_over(self, handover: Handover, until: float) -> None:
        """Give a recorded job to the pool, with callbacks that reach the gate first."""
        request, options = handover.request, dict(handover.options)
        counted = handover.job.queue_list, request.type
        forks = not (self.inline or self.threads or self.green)
        succeed = partial(self.run_counts.hear, *counted, options["callback"])
        again = partial(self.take_back, request)
        options["callback"] = partial(report, succeed, options["error_callback"], again)
        for name in CALLBACKS_OF_END:
            callback = partial(call_back, request, self.inline, options[name])
            options[name] = partial(self._call_and_end, handover, callback) if forks else callback
        if self.threads:
            options["accept_callback"] = partial(handover.accept, options["accept_callback"])
        try:
            # Celery checked it before the job waited here. A job in a thread or greenlet cannot be
            # revoked later.
            if handover.waited and request.revoked():
                self.out.discard(handover)
                return self._release()
            args = handover.args if forks else handover.decoded
            checked = run_and_pack if forks else run_and_check
            handed = (run_job, until, handover.claim(), handover.target, *args)
            result = self._apply(checked, handed, handover.kwargs, **options)
        except BaseException as exc:
            # A pool that cannot start a thread has the job in its queue, and may have started it.
            if self.threads and not handover.take():
                self.failure = exc
                return
            handover.owner.leases.take_back(handover.lease)
            self.out.discard(handover)
            if self.prefork:
                call = handover.args, handover.kwargs
                request.message.is_read = not drop_unsendable(self.pool, request, call)
            # This may run in a callback of another job, which must not fail by this error.
            short = self.threads and isinstance(exc, RuntimeError)
            if isinstance(exc, Exception) and self._takes_back(request, exc, short):
                return
            raise
        request._apply_result = None if result is None else ref(result)
        if self.inline:
            self._over(handover)
        elif self.threads:
            result.f.add_done_callback(partial(self._over, handover))
        elif self.green:  # not gevent's ``link``, which would start one more greenlet
            result.rawlink(partial(self._over, handover))

    def _call_and_end(
        self, handover: Handover, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        """Call a callback of the pool; the job has left the pool then, unless it is a soft
        limit."""
        try:
            callback(*args, **kwargs)
        finally:
            if not kwargs.get("soft"):
                self._over(handover)

    def _over(self, handover: Handover, *_: Any) -> None:
        """Free the slot of a job that has left the pool, and start the next one."""
        self.out.discard(handover)
        if not self.green:
            self.pump()
        elif self._waiting:  # this runs in gevent's hub, which must not block
            self.pool.spawn_n(self.pump)

    def _drop(self, handover: Handover, why: str, level: int = logging.INFO) -> None:
        """Requeue a job that was queued for the pool, and free its slot in Celery's books."""
        request = handover.request
        state.task_ready(request)
        handover.delivery.requeue()  # does nothing if the delivery was settled
        request.acknowledged = True
        logger.log(level, "Job %s does not start here: %s.", handover.job.title, why)
        self._release()

    def _release(self) -> None:
        """Release Celery's semaphore, as Celery does for a revoked job; only prefork pools have
        it."""
        with suppress(AttributeError):
            self.worker._quick_release()

    def _takes_back(self, request: Any, exc: Exception, short: bool = False) -> bool:
        """Settle a job that could not be started because of ``exc``, and free its slot; return
        whether that was done. ``short``: the process cannot start another thread."""
        if not unreceivable.refuses(request.message, exc, request.time_start is not None, short):
            return False
        if self.prefork:
            # Not at once: of many such jobs each would start within the call of the one before.
            self.worker.hub.call_soon(self.worker._quick_release)
        return True

    def requeue(self, request: Any) -> None:
        """Requeue a job that the pool dropped before it started."""
        for handover in [handover for handover in self.out if handover.request is request]:
            self.out.discard(handover)
            handover.delivery.requeue()

    def take_back(self, request: Any) -> None:
        """Queue a job again that its pool process received after the deadline, and did not run. If
        its channel is closed, requeue it instead: it would be lost for this worker at the next lost
        connection, where Celery forgets what waits for a slot."""
        delivery = request.delivery
        lease, owner = delivery.lease, delivery.owner
        state.task_ready(request)
        if delivery.channel.closed and not request.acknowledged:
            request.acknowledged = True
            return delivery.requeue()
        owner.leases.take_back(lease)
        # The process may run another job by now: if this one is terminated, that must not die.
        request.time_start = request.worker_pid = request._apply_result = None
        state.task_reserved(request)  # in Celery's books it waits for a slot again
        self.worker.process_task(request)
