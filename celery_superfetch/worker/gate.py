"""The gate between a worker's consumer and its pool: it starts each job when a slot is free.

``bootsteps.Maintenance`` makes the gate. Celery calls ``submit`` with each request that is due. The
gate keeps the request until a slot is free, and records in Redis that its job runs (the *start
record*). Then the request hands itself to the pool, with a deadline. Before the deadline no reaper
can declare this worker dead and move the job; if the pool process receives the job after the
deadline, it does not run the job, and ``LeasedRequest`` (``request.py``) calls ``redispatch``.

If the worker dies, the reaper of another worker (or of the next one on this host) recovers its
jobs. Those without a start record get no strike: all that wait for a slot. (For as many jobs as
slots are free, the claim itself is the start record.) Those that were started get a strike, or a
*stop* if the worker was stopping; the last strike dead-letters a job. A job with early ack
(``acks_late`` off) was settled as it began, and its run is lost. If a single pool process dies, the
pool reports that to the request of its job (``on_lost``), or the job returns to the gate if the
process had not begun with it (``pool_slots.py``).

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

billiard ._pool.
    tell its peers which processes it has: _pool.__iter__()
celery
    start each request that is due: worker.consumer.consumer:Consumer.on_task_request
    know what runs, and what waits for a slot: worker.state:active_requests
        worker.state:reserved_requests
    dispatch a job again, or drop it: worker.state:task_ready(request)
        worker.state:task_reserved(request) worker.request:Request._apply_result
    know which pool it is: concurrency.base:BasePool.is_green
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from celery.exceptions import TaskRevokedError
from celery.utils.log import get_logger
from celery.worker import state

from ..app.forked_children import end_forked_child
from ..app.notice import Notices
from ..model.config import ANNOUNCE_TASK
from ..model.job import digest
from ..model.log_text import one_line_each
from ..model.process import start_time
from ..owner.in_flight.executor import Executor
from . import unreadable_jobs
from .pool_adapter import ThreadAdapter, adapter_of, pool_name_of
from .prefork import drop_unsendable
from .run_counts import RunCounts
from .stopping import is_stopping

logger = one_line_each(get_logger(__name__))


def sleep_until(due: float) -> None:
    """Sleep until a time (s since the epoch). gevent's timers count from the moment at which its
    loop read the clock last: they fire early by as long as a greenlet has kept the loop since
    then."""
    while (left := due - time.time()) > 0:
        time.sleep(left)


class Gate(Executor):
    """The gate of one worker. Any thread may call it: the loop, a pool's threads, timers.

    It is the worker's ``Executor``, by which the owner and the transport know the pool (they call
    it ``executor``). Methods without a docstring override that class, which says who calls them.
    """

    endless = True
    notice: Notices
    _tick_count = 0
    _pump_again = False  # ``pump`` was called while another thread was in it

    def __init__(self, worker: Any) -> None:
        self.worker, self.pool, self.node = worker, worker.pool, worker.hostname
        self.pid = os.getpid()
        self.pool_name = pool_name_of(worker.pool)
        self.notice, self.run_counts = Notices(worker.app), RunCounts()
        self.tasks = digest(" ".join(sorted(worker.app.tasks)).encode())[:12]
        self._waiting: deque[Any] = deque()  # requests that are due
        self.out: set[Any] = set()  # requests whose jobs the pool has
        #: Requests of broadcasts that the pool has. They have no claim, so ``out`` is without them.
        self._broadcasts: set[Any] = set()
        self._pump_lock = threading.Lock()
        self.adapter = adapter_of(worker, self.requeue, self.pump)
        self.green = self.pool.is_green
        self.inline, self.prefork = self.adapter.is_inline, self.adapter.is_prefork
        worker.consumer.on_task_request = self.submit

    @property
    def slots(self) -> int:
        """The number of jobs that may run at once."""
        return self.adapter.slots

    def pids(self) -> Sequence[tuple[int, str]]:
        """Return (pid, start time) of each pool process, for the owner record."""
        processes = getattr(self.pool._pool, "_pool", None)
        pids = [process.pid for process in list(processes or ())]
        return sorted((pid, start_time(pid) or "") for pid in pids if pid is not None)

    def running(self) -> list[Any]:
        """Return the requests whose jobs are in the pool."""
        return list(self.out)

    def on_tick(self) -> None:
        end_forked_child(self.pid)
        if self.failure is not None:
            raise self.failure
        self._tick_count += 1

    def on_close(self) -> None:
        self._tick_count = 0

    def tick_count(self) -> int:
        """Return the number of ticks of the worker's loop; 0 while a job may block the loop: then
        the loop is not hung if it does not tick."""
        return 0 if (self.inline or self.green) and state.active_requests else self._tick_count

    def waiting_count(self) -> int:
        """Return how many jobs wait for a slot; jobs that wait for an ETA or a rate limit do not
        count."""
        # Before 5.7 Celery forgets at a reconnect that running jobs were reserved.
        return max(0, len(state.reserved_requests) - len(state.active_requests))

    def not_before(self, task: str, owner: Any) -> float:
        """Return when a job of this task may run at the earliest (s since the epoch; 0: now).
        Only failure notifications wait: the jobs that inform the publisher of a dead job."""
        return self.notice.not_before(owner.database) if task == ANNOUNCE_TASK else 0.0

    def is_registered(self, task: str) -> bool:
        """Return whether the worker has a task of this name."""
        return task in self.worker.app.tasks

    def busy(self, unsettled: bool) -> bool:
        """Return whether the pool has a job."""
        return bool(self.out)

    def free(self) -> int:
        """Return the number of slots for which no job of this worker waits."""
        waiting_count = len(self._waiting)
        free = self.slots - max(len(state.reserved_requests), len(self.out) + waiting_count)
        pool_slots = self.adapter.pool_slots
        return free if pool_slots is None else min(free, pool_slots.idle_count - waiting_count)

    def _has_slot(self, is_solo: bool) -> bool:
        """Return whether a job would start at once. ``is_solo``: this worker makes a solo run, in
        which a *suspect* (a job that may be killing its process) runs with no other job.

        Jobs in ``out`` count as well as processes. A pool process is idle a moment before its job
        leaves ``out``. If the next job started in this moment, its start record would be sent
        without the ack of the former job, and cost a round trip more.
        """
        if is_solo and self.out:
            return False
        if len(self.out) + len(self._broadcasts) >= self.slots:
            return False
        pool_slots = self.adapter.pool_slots
        return pool_slots is None or pool_slots.idle_count > 0

    def submit(self, request: Any) -> None:
        """Queue a request that is due, as the consumer's ``on_task_request``. Timers call it,
        too."""
        end_forked_child(self.pid)
        if self.green and request.eta:
            sleep_until(request.eta.timestamp())
        self._waiting.append(request)
        self.pump()

    def pump(self) -> None:
        """Start the jobs that may start now. If another thread is in this method, that thread
        starts them (``_pump_again``): the gate never waits for the lock, since a callback may call
        this method in the middle of a start."""
        self._pump_again = True
        while self._pump_again and self._waiting and self._pump_lock.acquire(blocking=False):
            self._pump_again = False
            try:
                while (request := self._choose()) is not None:
                    self._start(request)
            finally:
                self._pump_lock.release()
        if self._waiting and self.adapter.pool_slots is not None:
            self.adapter.pool_slots.report_loading(len(self._waiting))

    def _choose(self) -> Any:
        """Take the next request that may start from the queue, and record its start; None if none
        may start now. Requeue the jobs found before it that must not start in this worker."""
        while self._waiting:
            request = self._waiting[0]
            if (delivery := request.delivery) is None:  # a broadcast: no claim, and no deadline
                return self._take_broadcast() if self._has_slot(False) else None
            solo = delivery.owner.suspects.solo  # the lease of the job in a solo run, if any
            if not request.may_start:
                # `owner/in_flight/lost_jobs.py` logs its fate.
                self._drop(self._waiting.popleft(), "its ownership was lost", logging.DEBUG)
            elif solo is not None and delivery.lease is not solo and not request.acknowledged:
                self._drop(
                    self._waiting.popleft(), "it is requeued, since another job runs in isolation"
                )
            elif (
                self._has_slot(solo is not None)
                and not is_stopping(delivery.owner)
                and request.start()
            ):
                self.out.add(self._waiting.popleft())
                return request
            else:
                break
        return None

    def _take_broadcast(self) -> Any:
        """Remove the next request, which is of a broadcast, from the queue; return it. It takes a
        slot."""
        request = self._waiting.popleft()
        # A pool of processes has the slots itself (``pool_slots``). In another pool the next job
        # would wait for a thread, recorded as running, or block the loop until a greenlet ends.
        if not self.adapter.ends_by_callback:
            self._broadcasts.add(request)
        return request

    def _start(self, request: Any) -> None:
        """Make a recorded request hand itself to the pool."""
        try:
            result = request.execute_using_pool(self.pool)
        except TaskRevokedError:
            self.out.discard(request)
            self._broadcasts.discard(request)
        except BaseException as exc:
            self._broadcasts.discard(request)
            if not self._settles(request, exc):
                raise
        else:
            if not self.adapter.ends_by_callback:
                self.adapter.watch(result, partial(self.ended, request))

    def _settles(self, request: Any, exc: BaseException) -> bool:
        """Settle a request that failed to hand itself to the pool because of ``exc``, and free its
        slot; return False if the caller is to raise ``exc``.

        If the job is not at fault, it waits at the gate again. The caller may be within a callback
        of another job, where the pool swallows ``exc``: then the loop's next tick starts the job
        again, and meets the same error where it is raised.
        """
        if request.delivery is None:
            return False
        # False: a thread of the pool has the job already, in spite of the error.
        if not request.try_take():
            self.failure = exc
            return True
        self.out.discard(request)
        request.deadline = 0.0
        request.delivery.owner.leases.withdraw_start(request.delivery.lease)
        if self.prefork:
            request.message.is_read = not drop_unsendable(self.pool, request, request.job())
        has_run = request.time_start is not None
        # If this is within the job's delivery, ``QoS.deliver`` calls ``reject_unreadable``, too.
        # The lease may start again by then: without this mark a job that has run would be settled
        # there as one that has not.
        request.delivery.lease.has_run |= has_run
        if isinstance(exc, Exception):
            is_short_of_threads = isinstance(self.adapter, ThreadAdapter) and isinstance(
                exc, RuntimeError
            )
            if unreadable_jobs.reject_unreadable(
                request.message, exc, has_run, is_short_of_threads
            ):
                return True
        if not has_run and request.may_start:
            self._waiting.appendleft(request)
            # Celery's handler of a cold shutdown interrupted this start, and has ended the pool.
            # The job is requeued with the others that have not started.
            return isinstance(exc, Exception) and is_stopping(request.delivery.owner)
        return False

    def ended(self, request: Any, *_: Any) -> None:
        """Free the slot of a job that has left the pool, and start the next one. A job that was not
        started there is queued again."""
        self.out.discard(request)
        self._broadcasts.discard(request)
        if request.starts_again:
            request.starts_again = False
            # Here and not in ``redispatch``: a thread may call that before ``execute_using_pool``
            # has set this attribute.
            request._apply_result = None
            # First in the queue: the jobs behind it were sent later. At the end of the queue it
            # would wait for all that were claimed meanwhile, and then may come too late again.
            self._waiting.appendleft(request)
        if not self.green:
            self.pump()
        elif self._waiting:  # this runs in gevent's hub, which must not block
            self.pool.spawn_n(self.pump)

    def redispatch(self, request: Any) -> None:
        """Queue a job for a slot again, before the others, as soon as it has left the pool: its
        pool process received it after the deadline, and did not run it. ``LeasedRequest`` calls
        this.

        If the channel of the job is closed (its connection was lost), requeue the job instead.
        Celery forgets at each lost connection which requests wait for a slot, so that this worker
        might never run the job.
        """
        delivery = request.delivery
        state.task_ready(request)
        if delivery.channel.closed and not request.acknowledged:
            request.acknowledged = True
            return delivery.requeue()
        delivery.owner.leases.withdraw_start(delivery.lease)
        # The process may run another job by now, which would die if Celery terminated this request.
        request.time_start = request.worker_pid = None
        request.deadline = 0.0
        state.task_reserved(request)  # in Celery's books it waits for a slot again
        request.starts_again = True

    def _drop(self, request: Any, why: str, level: int = logging.INFO) -> None:
        """Remove a job from the gate, where it waits for a slot, and requeue it."""
        state.task_ready(request)
        request.delivery.requeue()  # does nothing if the delivery was settled
        request.acknowledged = True
        logger.log(
            level, "Job %s does not start on this worker: %s.", request.delivery.job.title, why
        )

    def requeue(self, request: Any) -> None:
        """Requeue a job that the pool dropped before it started, when it was flushed at a lost
        connection. ``prefork.py`` calls this."""
        if request in self.out:
            self.out.discard(request)
            request.delivery.requeue()
