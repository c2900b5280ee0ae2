"""The stop of a worker: marks its owners as stopping, so that it starts no more jobs, and requeues
the jobs that have not started. ``worker.steps`` starts the ``Stopper`` and wraps Celery's signal
handlers, which run in the main thread. If the worker is killed meanwhile, its owner record says
that it was stopping, and the runs that were cut short count as stops and not as strikes.

Foreign names:

celery
    know which pool it is: concurrency.solo:TaskPool concurrency.thread:TaskPool
        concurrency.base:BasePool.is_green
    know whether a thread for a job comes up: concurrency.thread:TaskPool.executor
    know that the worker stops: worker.state:should_stop worker.state:should_terminate
        worker.state:active_requests apps.worker:_shutdown_handler~worker_
    let a job of the solo pool end: worker.worker:WorkController.wait_for_soft_shutdown()
    end a job whose start it reads late: concurrency.asynpool:ResultHandler._recv_message
billiard
    end a job whose start it reads late: pool:ApplyResult._ack pool:ApplyResult._set(i,obj)
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from contextlib import suppress
from time import sleep
from typing import Any

from billiard.pool import ApplyResult
from celery.concurrency import solo, thread
from celery.concurrency.asynpool import ResultHandler
from celery.platforms import EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from ..model import forks
from ..model.log_text import one_line_each
from ..owner.owner import Owner
from ..owner.process_owners import owners_of_process
from ..transport.channel import Channel

logger = one_line_each(get_logger(__name__))

AGAIN = 0.05  # s until a signal is sent again that came while the main thread held a lock
LOOK_INTERVAL = 0.5  # s between two checks of the flags that Celery's signal handlers set

#: Code that reads the message of a pool process, and that handles the start of a job.
READS = frozenset({ResultHandler._recv_message.__code__, ApplyResult._ack.__code__})
#: Code that handles the end of a job; it runs within ``_recv_message``.
ENDS = ApplyResult._set.__code__


def owners_of(worker: Any) -> list[Owner]:
    return [owner for owner in owners_of_process() if owner.runner.worker is worker]


def channels_of(worker: Any) -> list[Channel]:
    """Return the channels from which a worker consumes at the moment."""
    connection = worker.consumer.connection
    channels = list(connection.transport.channels or ()) if connection else []
    return [channel for channel in channels if getattr(channel, "_fetch", None) is not None]


def process_ends() -> bool:
    """Return whether Celery's flags tell all workers of this process to stop. Celery resets them
    where a worker is embedded in another program."""
    flags = state.should_stop, state.should_terminate
    return any(flag is not None and flag is not False for flag in flags)  # 0 is an exit code


def told_to_stop(owner: Owner) -> bool:
    """Return whether the owner's worker is stopping."""
    return owner.stopping or process_ends()


class Stopper(threading.Thread):
    """A thread that requeues the jobs that have not started as soon as the worker is stopping: the
    consumer's own thread may be busy for hours (solo), wait for a slot (gevent) or sleep in a
    signal handler (soft shutdown)."""

    def __init__(self, worker: Any) -> None:
        super().__init__(name="superfetch-stopper", daemon=True)
        self.worker = worker
        self._told = False  # this worker was told to stop; others in the process may go on
        self.over = threading.Event()

    def run(self) -> None:
        forks.mark_thread()
        while not self.over.wait(LOOK_INTERVAL):
            if self._mark(self._told or process_ends()):
                with forks.kept_off():
                    self.requeue_waiting()

    def say_so(self, failing: bool = False) -> None:
        """Mark the worker's owners as stopping, and as ``failing`` if they end by an error of their
        own. Safe in a signal handler, since it only sets flags."""
        if failing:
            for owner in owners_of(self.worker):
                owner.failing = True
        self._told = self._mark(True)

    def _mark(self, stopping: bool) -> bool:
        for owner in owners_of(self.worker):
            owner.stopping = stopping
        return stopping

    def requeue_waiting(self) -> None:
        """Requeue the jobs that have not started; an error is logged."""
        try:
            count = sum(channel.qos.requeue_waiting() for channel in channels_of(self.worker))
        except Exception:  # the channel's close requeues them
            logger.exception(
                "Told to stop, and the jobs that wait could not be given back yet. They are safe "
                "in private lists, and go back when the connection closes, or by another worker."
            )
        else:
            if count:
                logger.info("Told to stop: %d jobs went back to their queues.", count)


def wrap_handlers(stopper: Stopper) -> None:
    """Put ``_on_cold`` before Celery's signal handlers of a cold shutdown: these wait for jobs
    before they send ``worker_shutting_down``, by which the worker would be marked too late."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        handler: Any = signal.getsignal(number)
        if getattr(handler, "__name__", "") == "worker_Cold":
            # No ``partial``: ``signal`` formats the ``repr`` of each handler, that of a ``partial``
            # formats its arguments, and that of a thread (the stopper) takes a lock. Under gevent
            # the worker would hang at the next signal.
            def first(number: int, frame: Any, handler: Any = handler) -> None:
                _on_cold(stopper, handler, number, frame)

            with suppress(ValueError):  # the worker runs in a thread, which cannot set handlers
                signal.signal(number, first)


def _on_cold(stopper: Stopper, handler: Any, number: int, frame: Any) -> None:
    """Mark the worker as stopping, and run Celery's handler of a cold shutdown. If that would
    deadlock now, it runs in a greenlet, or at the same signal, which is sent again; if it would cut
    short a job of a solo pool before the soft shutdown's time is over, it runs after that time."""
    stopper.say_so()
    worker, pool, conf = stopper.worker, stopper.worker.pool, stopper.worker.app.conf
    wait = conf.worker_soft_shutdown_timeout
    busy = conf.worker_enable_soft_shutdown_on_idle or state.active_requests
    if pool is not None and pool.is_green:
        # The handler waits and joins, and this may be gevent's hub, which must not block.
        pool.spawn_n(handler, number, frame)
    elif (
        pool is not None
        and not isinstance(pool, solo.TaskPool)
        and _is_at_work(worker, pool, frame)
    ):
        # The handler stops the pool and joins its threads or processes. If this thread, which the
        # signal has interrupted, holds a lock that the handler or one of the threads needs, all
        # wait for ever. If it is about to learn that a job runs in a process, the handler does not
        # end that job, and waits for it.
        _again(AGAIN, number)
    elif pool is not None and isinstance(pool, solo.TaskPool) and wait > 0 and busy:
        # The handler would sleep on top of the job, which is to finish in that time.
        logger.warning("Initiating Soft Shutdown, terminating in %s seconds", wait)
        worker.wait_for_soft_shutdown = lambda: None
        signal.signal(number, handler)
        state.should_stop = EX_OK
        _again(wait, number)
    else:
        for owner in owners_of(worker):
            owner.runner.ends_jobs = owner.runner.prefork  # see ``end_late_start``
        handler(number, frame)


def end_late_start(owner: Owner) -> None:
    """End the running jobs if a cold shutdown has begun; called when a job's start was read.

    Celery's handler ends the jobs whose start the worker has read, and then waits for the pool. The
    pool reads on meanwhile. A job whose start it reads only then would run to its end, and the
    worker would wait for it: for hours, or until it is killed.
    """
    if owner.runner.ends_jobs:
        consumer = owner.runner.worker.consumer
        if hasattr(consumer, "cancel_active_requests"):
            consumer.cancel_active_requests()
        else:  # Celery 5.5
            consumer.cancel_all_unacked_requests()


def _is_at_work(worker: Any, pool: Any, frame: Any) -> bool:
    """Return whether the signal has interrupted this thread where the handler must not run: while
    it reads that a pool process has started a job; or while it may hold the lock of an owner's jobs
    in flight, or of a pool of threads. It holds the latter while a new thread starts, and the job
    in that thread may send the signal at once."""
    if isinstance(pool, thread.TaskPool) and pool.executor._shutdown_lock.locked():
        return True
    if _reads_start(frame):
        return True
    for owner in owners_of(worker):
        with suppress(RuntimeError):  # a condition raises it where the lock is not held
            threading.Condition(owner.leases.lock).notify(0)
            return True
    return False


def _reads_start(frame: Any) -> bool:
    """Return whether an interrupted frame reads the message of a pool process, or handles the start
    of its job."""
    while frame is not None and frame.f_code is not ENDS:
        if frame.f_code in READS:
            return True
        frame = frame.f_back
    return False


def _again(wait: float, number: int) -> None:
    """Send this process a signal again after ``wait`` s."""

    def send() -> None:
        sleep(wait)
        os.kill(os.getpid(), number)

    # No ``threading.Timer``: its start takes locks that this thread, interrupted, may hold.
    _thread.start_new_thread(send, ())
