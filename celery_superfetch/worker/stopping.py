"""A worker that was told to stop: it says so, starts nothing more, and gives back what waits."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Any

from celery.platforms import EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from ..model import forks
from ..owner.here import owners_here
from ..owner.owner import Owner
from ..transport.channel import Channel

logger = get_logger(__name__)

#: Where pools are that only their module tells from others.
SOLO, THREADS = "celery.concurrency.solo", "celery.concurrency.thread"
AGAIN = 0.05  # seconds until a signal comes again that found the loop at work on its jobs
LOOK_INTERVAL = 0.5  # seconds between two looks for an order to stop: its handler only sets flags


def is_of(pool: Any, module: str) -> bool:
    """Also where the user has made his own pool of Celery's."""
    return any(base.__module__ == module for base in type(pool).__mro__)


def owners_of(worker: Any) -> list[Owner]:
    return [owner for owner in owners_here() if owner.runner.worker is worker]


def channels_of(worker: Any) -> list[Channel]:
    """Those from which a worker consumes at this moment."""
    connection = worker.consumer.connection
    channels = list(connection.transport.channels or ()) if connection else []
    return [channel for channel in channels if getattr(channel, "_fetch", None) is not None]


def process_ends() -> bool:
    """What Celery tells all workers of a process; it is taken back where one was embedded."""
    flags = state.should_stop, state.should_terminate
    return any(flag is not None and flag is not False for flag in flags)  # 0 is an exit code


def told_to_stop(owner: Owner) -> bool:
    return owner.stopping or process_ends()


class Stopper(threading.Thread):
    """Gives back what waits as soon as the worker is told to stop: the consumer's own thread may be
    busy for hours (solo), wait for a slot (gevent) or sleep in a signal handler (soft shutdown)."""

    def __init__(self, worker: Any) -> None:
        super().__init__(name="superfetch-stopper", daemon=True)
        self.worker = worker
        self._told = False  # this worker, not its process
        self.over = threading.Event()

    def run(self) -> None:
        forks.mark_thread()
        while not self.over.wait(LOOK_INTERVAL):
            if self._mark(self._told or process_ends()):
                with forks.kept_off():
                    self.requeue_waiting()

    def say_so(self, failing: bool = False) -> None:
        """Mark its owners as stopping, and as ``failing`` by an error of their own; safe in a
        signal handler, since it only sets flags."""
        if failing:
            for owner in owners_of(self.worker):
                owner.failing = True
        self._told = self._mark(True)

    def _mark(self, stopping: bool) -> bool:
        for owner in owners_of(self.worker):
            owner.stopping = stopping
        return stopping

    def requeue_waiting(self) -> None:
        try:
            count = sum(channel.qos.requeue_waiting() for channel in channels_of(self.worker))
        except Exception:  # the channel's close gives it back
            logger.exception(
                "Told to stop, and the jobs that wait could not be given back yet. They are safe "
                "in private lists, and go back when the connection closes, or by another worker."
            )
        else:
            if count:
                logger.info("Told to stop: %d jobs went back to their queues.", count)


def wrap_handlers(stopper: Stopper) -> None:
    """Be asked before Celery's handlers of a cold shutdown, which report last and block first."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        handler: Any = signal.getsignal(number)
        if getattr(handler, "__name__", "") == "worker_Cold":
            # No ``partial``: Python asks for the ``repr`` of what it finds in a handler's place,
            # and that of a thread waits for a lock. Under gevent the next signal stopped the
            # worker for ever.
            def first(number: int, frame: Any, handler: Any = handler) -> None:
                _on_cold(stopper, handler, number, frame)

            with suppress(ValueError):  # embedded in a thread, where nobody handles signals
                signal.signal(number, first)


def _on_cold(stopper: Stopper, handler: Any, number: int, frame: Any) -> None:
    stopper.say_so()
    worker, pool, conf = stopper.worker, stopper.worker.pool, stopper.worker.app.conf
    wait = conf.worker_soft_shutdown_timeout
    busy = conf.worker_enable_soft_shutdown_on_idle or state.active_requests
    if pool is not None and pool.is_green:
        # The handler waits and joins, which no code may that runs in the hub.
        pool.spawn_n(handler, number, frame)
    elif pool is not None and not pool.signal_safe and _works_on_jobs(worker):
        # The handler joins the pool's threads, of which one may wait for the lock that this one,
        # interrupted, has: both would wait for ever.
        _again(AGAIN, number)
    elif pool is not None and is_of(pool, SOLO) and wait > 0 and busy:
        # To sleep in the handler would be to sleep on top of the very job that is to finish.
        logger.warning("Initiating Soft Shutdown, terminating in %s seconds", wait)
        worker.wait_for_soft_shutdown = lambda: None
        signal.signal(number, handler)
        state.should_stop = EX_OK
        _again(wait, number)
    else:
        handler(number, frame)


def _works_on_jobs(worker: Any) -> bool:
    """Whether this thread has the lock of what is in flight."""
    for owner in owners_of(worker):
        with suppress(RuntimeError):  # which a condition raises for whoever has not its lock
            threading.Condition(owner.lock).notify(0)
            return True
    return False


def _again(wait: float, number: int) -> None:
    timer = threading.Timer(wait, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
