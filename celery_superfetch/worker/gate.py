"""The gate between a worker's consumer and its pool: it starts each job when a slot is free.

Celery calls ``submit`` with each request that is due. The gate keeps the request until a slot is
free, records on the server that its job runs, and lets the request hand itself to the pool with a
deadline: until then no reaper can have declared the worker dead and moved the job. A job that its
pool process receives later is not run, and comes back to the gate.

If the worker dies, the jobs that the gate keeps were not recorded as running, and are recovered
without a strike; those that it has started are recovered with one.

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

from ..app.notice import Notices
from ..model.config import ANNOUNCE_TASK
from ..model.job import digest
from ..model.log_text import one_line_each
from ..model.process import start_time
from ..owner.in_flight.executor import Executor
from . import unreceivable
from .forked_children import end_forked_child
from .pool_adapter import ThreadAdapter, adapter_of
from .prefork import drop_unsendable
from .run_counts import RunCounts
from .stopping import told_to_stop

logger = one_line_each(get_logger(__name__))


def sleep_until(due: float) -> None:
    """Sleep until a time (s since the epoch). gevent's timers count from the moment at which its
    loop read the clock last: they fire early by as long as a greenlet has kept the loop since
    then."""
    while (left := due - time.time()) > 0:
        time.sleep(left)


class Gate(Executor):
    """The gate of one worker. Any thread may call it: the loop, a pool's threads, timers. For the
    methods that ``Executor`` has, that class says who calls them."""

    endless = True
    notice: Notices
    _turns = 0
    _pump_again = False  # ``pump`` was called while another thread was in it

    def __init__(self, worker: Any) -> None:
        self.worker, self.pool, self.node = worker, worker.pool, worker.hostname
        self.pid = os.getpid()
        self.notice, self.run_counts = Notices(worker.app), RunCounts()
        self.tasks = digest(" ".join(sorted(worker.app.tasks)).encode())[:12]
        self._waiting: deque[Any] = deque()  # requests that are due
        self.out: set[Any] = set()  # requests whose jobs the pool has
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
        waiting_count = len(self._waiting)
        free = self.slots - max(len(state.reserved_requests), len(self.out) + waiting_count)
        pool_slots = self.adapter.pool_slots
        return free if pool_slots is None else min(free, pool_slots.idle_count - waiting_count)

    def _has_slot(self, alone: bool) -> bool:
        """Return whether a job would start at once; ``alone``: a suspect runs alone in this worker.

        Jobs in ``out`` count as well as processes: a pool process is idle a moment before its job
        leaves ``out``, and if another job started then, its start record would be sent without that
        job's ack, in a round trip of its own.
        """
        if len(self.out) >= (1 if alone else self.slots):
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
        """Start the jobs that may start now. If another thread is in here, it starts them: the gate
        never waits for the lock, since a callback may call this in the middle of a start."""
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
        """Take the next request from the queue that may start, recorded as running; None if none
        may start now. Requeue on the way the jobs that must not start in this worker any more."""
        while self._waiting:
            request = self._waiting[0]
            if (delivery := request.delivery) is None:  # a broadcast: no claim, and no deadline
                return self._waiting.popleft() if self._has_slot(False) else None
            alone = delivery.owner.suspects.solo  # the lease of the job in a solo run, if any
            if not request.may_start:
                # What became of it is logged by `owner/in_flight/lost_jobs.py`.
                self._drop(self._waiting.popleft(), "this worker no longer holds it", logging.DEBUG)
            elif alone is not None and delivery.lease is not alone and not request.acknowledged:
                self._drop(self._waiting.popleft(), "another runs alone here")
            elif (
                self._has_slot(alone is not None)
                and not told_to_stop(delivery.owner)
                and request.start()
            ):
                self.out.add(self._waiting.popleft())
                return request
            else:
                break
        return None

    def _start(self, request: Any) -> None:
        """Let a recorded request hand itself to the pool."""
        try:
            result = request.execute_using_pool(self.pool)
        except TaskRevokedError:
            self.out.discard(request)
        except BaseException as exc:
            if not self._settles(request, exc):
                raise
        else:
            if request.delivery is not None:
                self.adapter.watch(result, partial(self.ended, request))

    def _settles(self, request: Any, exc: BaseException) -> bool:
        """Settle a request that failed to hand itself to the pool because of ``exc``, and free its
        slot; return False if ``exc`` is to be raised. If it is not the job's fault, the job waits
        again: if this was called within a callback of another job, the pool swallows ``exc``, and
        the next start, by the loop's next tick, meets the same error."""
        if request.delivery is None:
            return False
        if not request.take():  # a thread of the pool has the job already, in spite of the error
            self.failure = exc
            return True
        self.out.discard(request)
        request.deadline = 0.0
        request.delivery.owner.leases.take_back(request.delivery.lease)
        if self.prefork:
            request.message.is_read = not drop_unsendable(self.pool, request, request.job())
        has_run = request.time_start is not None
        if isinstance(exc, Exception):
            is_short_of_threads = isinstance(self.adapter, ThreadAdapter) and isinstance(
                exc, RuntimeError
            )
            if unreceivable.refuses(request.message, exc, has_run, is_short_of_threads):
                return True
        if not has_run and request.may_start:
            self._waiting.appendleft(request)
        return False

    def ended(self, request: Any, *_: Any) -> None:
        """Free the slot of a job that has left the pool, and start the next one. A job that was not
        started there is queued again."""
        self.out.discard(request)
        if request.starts_again:
            request.starts_again = False
            # Now: a thread may redispatch a request before ``execute_using_pool`` has set this.
            request._apply_result = None
            self._waiting.append(request)
        if not self.green:
            self.pump()
        elif self._waiting:  # this runs in gevent's hub, which must not block
            self.pool.spawn_n(self.pump)

    def redispatch(self, request: Any) -> None:
        """Queue a job again, as soon as it has left the pool: its pool process received it after
        the deadline, and did not run it. If its channel is closed, requeue it instead: Celery
        forgets at the next lost connection what waits for a slot, and this worker would never run
        the job."""
        delivery = request.delivery
        state.task_ready(request)
        if delivery.channel.closed and not request.acknowledged:
            request.acknowledged = True
            return delivery.requeue()
        delivery.owner.leases.take_back(delivery.lease)
        # The process may run another job by now: if this one is terminated, that must not die.
        request.time_start = request.worker_pid = None
        request.deadline = 0.0
        state.task_reserved(request)  # in Celery's books it waits for a slot again
        request.starts_again = True

    def _drop(self, request: Any, why: str, level: int = logging.INFO) -> None:
        """Requeue a job that waits for a slot."""
        state.task_ready(request)
        request.delivery.requeue()  # does nothing if the delivery was settled
        request.acknowledged = True
        logger.log(level, "Job %s does not start here: %s.", request.delivery.job.title, why)

    def requeue(self, request: Any) -> None:
        """Requeue a job that the pool dropped before it started."""
        if request in self.out:
            self.out.discard(request)
            request.delivery.requeue()
