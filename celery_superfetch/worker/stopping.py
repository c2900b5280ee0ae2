"""The stop of a worker: it starts no more jobs, and jobs that have not started are requeued within
half a second.

A worker is one *owner* (the identity under which it claims jobs) in each database from which it
consumes. ``Stopper`` marks them as stopping, and its thread requeues their jobs. ``_on_cold`` runs
before Celery's handlers of a cold shutdown, in the main thread, and avoids deadlocks.

``worker.bootsteps`` starts the ``Stopper``, reports a shutdown to it, and calls ``wrap_handlers``.
The gate, the request and the modules that settle jobs ask ``is_stopping``; a request calls
``end_late_start`` when its job was accepted.

If the worker is killed while it stops, the reaper of another worker (or of the next one) recovers
its jobs. The next heartbeat after the mark writes *stopping* into the owner record. From then on
a run that is cut short counts as a *stop*, before that as a *strike*: a strike is counted against a
job that may have killed its worker, a stop has a limit of its own (``stop_limit``).

Undocumented names that this file uses, by purpose (docs/contribute/architecture.md, Ports):

Foreign names:

celery
    know which pool it is: concurrency.base:BasePool.is_green
    know that the worker stops: worker.state:should_stop worker.state:should_terminate
        worker.state:active_requests apps.worker:_shutdown_handler~worker_
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from celery.platforms import EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from ..model import fork_gate
from ..model.log_text import one_line_each
from ..owner.owner import Owner
from ..owner.process_owners import owners_of_process
from ..transport.channel import Channel

logger = one_line_each(get_logger(__name__))

#: Seconds after which a signal is sent again, if Celery's handler would deadlock now.
SIGNAL_RETRY_S = 0.05
#: Seconds from the first signal of a cold shutdown until which jobs may still be written to their
#: processes. A pipe has room for most jobs, so that a write takes microseconds; a process that
#: reads nothing for so long hangs.
WRITES_S = 1.0
FLAGS_CHECK_S = 0.5  # s between two checks of the flags that Celery's signal handlers set


def owners_of(worker: Any) -> list[Owner]:
    """Return the owners of a worker: one for each database from which it consumes."""
    return [owner for owner in owners_of_process() if owner.executor.worker is worker]


def channels_of(worker: Any) -> list[Channel]:
    """Return the channels from which a worker consumes at the moment."""
    connection = worker.consumer.connection
    channels = list(connection.transport.channels or ()) if connection else []
    return [channel for channel in channels if getattr(channel, "_fetch", None) is not None]


def process_ends() -> bool:
    """Return whether Celery's flags tell all workers of this process to stop. If a worker is
    embedded in another program, Celery resets the flags when it has ended, and a later worker of
    the process is not stopping."""
    flags = state.should_stop, state.should_terminate
    return any(flag is not None and flag is not False for flag in flags)  # 0 is an exit code


def is_stopping(owner: Owner) -> bool:
    """Return whether the owner's worker is stopping."""
    return owner.stopping or process_ends()


class Stopper(threading.Thread):
    """A thread that requeues the jobs that have not started, within ``FLAGS_CHECK_S`` after the
    worker began to stop. The consumer's own thread may be busy for hours (solo), wait for a slot
    (gevent) or sleep in a signal handler (soft shutdown)."""

    def __init__(self, worker: Any) -> None:
        super().__init__(name="superfetch-stopper", daemon=True)
        self.worker = worker
        self._is_stopping = False  # this worker was told to stop; others in the process may go on
        self.cold_since = math.inf  # monotonic s of the first signal for a cold shutdown
        self.over = threading.Event()

    def run(self) -> None:
        fork_gate.mark_thread()
        while not self.over.wait(FLAGS_CHECK_S):
            if self._follow_flags():
                with fork_gate.kept_off():
                    self.requeue_waiting()

    def _follow_flags(self) -> bool:
        """Mark the worker's owners as stopping or not, as the flags have it; return whether the
        worker is stopping."""
        if not (self._is_stopping or process_ends()):
            self._mark(False)
        # Read again: if a signal handler has marked the owners since, that may have cleared the
        # mark, and the worker would start jobs until the next check.
        is_stopping = self._is_stopping or process_ends()
        if is_stopping:
            self._mark(True)
        return is_stopping

    def mark_stopping(self, failing: bool = False) -> None:
        """Mark the worker's owners as stopping, and as ``failing`` if the worker ends by an error
        that one of its jobs may have caused. Safe in a signal handler, since it only sets flags."""
        if failing:
            for owner in owners_of(self.worker):
                owner.failing = True
        self._is_stopping = True  # before the mark, which ``_follow_flags`` may clear
        self._mark(True)

    def _mark(self, stopping: bool) -> None:
        for owner in owners_of(self.worker):
            owner.stopping = stopping

    def requeue_waiting(self) -> None:
        """Requeue the jobs that have not started; an error is logged."""
        try:
            count = sum(channel.qos.requeue_waiting() for channel in channels_of(self.worker))
        except Exception:  # the channel's close requeues them
            logger.exception(
                "Worker stopping: jobs that had not started could not be requeued yet. They are "
                "safe in Redis, in this worker's private list, and are requeued when the "
                "connection closes, or recovered by another worker."
            )
        else:
            if count:
                # Not "requeued": the server may refuse that now, or be away.
                logger.info(
                    "Worker stopping: jobs that had not started are being requeued (jobs=%d).",
                    count,
                )


def wrap_handlers(stopper: Stopper) -> None:
    """Put ``_on_cold`` before Celery's signal handlers of a cold shutdown. These handlers wait for
    jobs before they send ``worker_shutting_down``: the worker would be marked as stopping too
    late."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        handler: Any = signal.getsignal(number)
        if getattr(handler, "__name__", "") == "worker_Cold":  # Celery's
            # Not a ``partial``: ``signal`` makes the ``repr`` of each handler. The ``repr`` of a
            # ``partial`` contains that of its arguments, and the ``repr`` of a thread (the stopper)
            # takes a lock. Under gevent the worker would hang at the next signal.
            def first(number: int, frame: Any, handler: Any = handler) -> None:
                _on_cold(stopper, handler, number, frame)

            with suppress(ValueError):  # the worker runs in a thread, which cannot set handlers
                signal.signal(number, first)


def _on_cold(stopper: Stopper, handler: Any, number: int, frame: Any) -> None:
    """Mark the worker as stopping, and run Celery's handler of a cold shutdown: at once; or

    - in a greenlet, in a pool of greenlets, where the handler would block the loop;
    - a moment later, when the signal is sent again, if the handler would deadlock now. A process
      that has read only a part of its job after ``WRITES_S`` is killed: it has not begun the job;
    - after the time of a soft shutdown, in a solo pool, so that the running job may end in it.
    """
    stopper.mark_stopping()
    stopper.cold_since = min(stopper.cold_since, monotonic())
    worker, pool, conf = stopper.worker, stopper.worker.pool, stopper.worker.app.conf
    is_solo = worker.superfetch_gate.inline
    wait = conf.worker_soft_shutdown_timeout
    busy = conf.worker_enable_soft_shutdown_on_idle or state.active_requests
    receivers = worker.superfetch_gate.adapter.receivers()
    if pool is not None and pool.is_green:
        # The handler waits and joins, and this may be gevent's hub, which must not block.
        pool.spawn_n(handler, number, frame)
    elif pool is not None and not is_solo and _is_at_work(worker):
        # The handler stops the pool and joins its threads or processes. The signal has interrupted
        # this thread. If this thread holds a lock that the handler or one of the pool's threads
        # needs, all wait for ever. If this thread is just reading that a process has started a job,
        # the handler does not know that the job runs: it does not end the job, and waits for it.
        _again(SIGNAL_RETRY_S, number)
    elif receivers:
        # The handler waits until each process has ended, and no more is written meanwhile: a
        # process with a part of its job would wait for the rest, and the worker for ever.
        if monotonic() > stopper.cold_since + WRITES_S:
            for process in receivers:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        _again(SIGNAL_RETRY_S, number)
    elif pool is not None and is_solo and wait > 0 and busy:
        # The handler has interrupted the job, and would sleep for the time in which the job is to
        # end. So the job continues, and the handler runs later, without its sleep.
        logger.warning("Initiating Soft Shutdown, terminating in %s seconds", wait)
        worker.wait_for_soft_shutdown = lambda: None
        signal.signal(number, handler)
        state.should_stop = EX_OK
        _again(wait, number)
    else:
        for owner in owners_of(worker):
            owner.executor.ends_jobs = owner.executor.prefork  # see ``end_late_start``
        handler(number, frame)


def end_late_start(owner: Owner) -> None:
    """End the running jobs if a cold shutdown has begun. ``LeasedRequest.on_accepted`` calls this:
    the worker has read that a pool process started a job.

    Celery's handler ends the jobs whose start the worker has read, and then waits for the pool,
    which still reads messages. If the pool first reads then that another job has started, this job
    would run to its end, and the worker would wait for it: for hours, or until it is killed.
    """
    if owner.executor.ends_jobs:
        consumer = owner.executor.worker.consumer
        if hasattr(consumer, "cancel_active_requests"):
            consumer.cancel_active_requests()
        else:  # Celery 5.5
            consumer.cancel_all_unacked_requests()


def _is_at_work(worker: Any) -> bool:
    """Return whether the signal has interrupted this thread where the handler must not run: while
    the thread reads that a pool process has started a job; or while it may hold the lock of an
    owner's jobs in flight, or the lock of a pool of threads."""
    if worker.superfetch_gate.adapter.is_at_work():
        return True
    for owner in owners_of(worker):
        # ``notify`` raises RuntimeError unless this thread holds the lock.
        with suppress(RuntimeError):
            threading.Condition(owner.leases.lock).notify(0)
            return True
    return False


def _again(wait: float, number: int) -> None:
    """Send this process a signal again after ``wait`` s."""

    def send() -> None:
        sleep(wait)
        os.kill(os.getpid(), number)

    # No ``threading.Timer``: its start takes locks that this thread, interrupted, may hold.
    _thread.start_new_thread(send, ())
