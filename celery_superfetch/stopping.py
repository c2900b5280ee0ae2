"""A worker that was told to stop: it says so, starts nothing more, and gives back what waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from celery.bootsteps import IGNORE_ERRORS
from celery.exceptions import TaskRevokedError, WorkerTerminate
from celery.platforms import EX_FAILURE, EX_OK
from celery.utils.log import get_logger
from celery.worker import state

from .memberships import memberships
from .qos import Delivered

logger = get_logger(__name__)

#: Seconds between two looks for an order to stop. The signal handler itself may only set flags.
LOOK_INTERVAL = 0.5

#: The only strategy that is known to ask a request before it runs it. Others (batches) keep
#: messages of their own, and settle those themselves.
ASKS_FIRST = "celery.worker.strategy:default"


def told_to_stop() -> bool:
    """Whether this worker is on its way out: by signal, remote control or an error."""
    # An exit code of 0 says stop as well.
    flags = (state.should_stop, state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags) or any(
        membership.is_stopping for membership in memberships()
    )


def say_so() -> None:
    """Mark the owner as stopping; safe in a signal handler, since it only sets flags."""
    for membership in memberships():
        membership.stopping()


class Returnable:
    """Mixin for a request class: until it starts it may be given back; then it does not start."""

    #: Jobs that a pool of processes was handed may run at once; other pools say when they do.
    _pool_of_processes = False
    #: Raised where the pool is about to run it, in the pool's own thread or greenlet.
    _refusal: type[BaseException] = TaskRevokedError
    #: Its greenlet is being killed.
    _greenlet_killed = False

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)  # type: ignore[call-arg]
        raw = getattr(message, "_raw", None)
        if isinstance(raw, Delivered) and self.task.Strategy == ASKS_FIRST:  # type: ignore[attr-defined]
            raw.stage = "waits"

    def _start(self) -> bool:
        raw = getattr(self.message, "_raw", None)  # type: ignore[attr-defined]
        if not isinstance(raw, Delivered) or raw.stage in ("", "started"):
            return True
        return not told_to_stop() and raw.start()

    def revoked(self) -> bool:
        """Celery asks on reception, and again before it hands the request to the pool."""
        if super().revoked():  # type: ignore[misc]
            return True
        handed_over = self._pool_of_processes and self in state.reserved_requests
        return handed_over and not self._start()

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """The next thing to happen is the task's body (in a pool of processes: it has begun)."""
        if not self._start():
            raise self._refusal(self.id)  # type: ignore[attr-defined]
        super().on_accepted(pid, time_accepted)  # type: ignore[misc]

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """A cold shutdown, or a lost connection, ends what runs; it goes back to its queue."""
        self._greenlet_killed = pool.is_green
        try:
            super().cancel(pool, *args, **kwargs)  # type: ignore[misc]
        except NotImplementedError:
            if not is_solo(pool):
                logger.warning(
                    "Job %s[%s] cannot be ended: it runs in a thread. The worker waits for it.",
                    self.name,  # type: ignore[attr-defined]
                    self.id,  # type: ignore[attr-defined]
                )
                return
            # We are in a signal handler on top of the job itself: end it from here. A job that
            # Celery's own error ended would count as failed, and be gone.
            told = {name: kwargs[name] for name in ("emit_retry",) if name in kwargs}
            self._announce_cancelled(**told)  # type: ignore[attr-defined]
            if not self.acknowledged:  # type: ignore[attr-defined]
                self._give_back()  # type: ignore[attr-defined]
            raise WorkerTerminate(EX_FAILURE) from None

    def acknowledge(self) -> Any:
        """Celery takes the end of a killed greenlet for success; its ack would lose the job."""
        if self._greenlet_killed and not self.acknowledged:  # type: ignore[attr-defined]
            return self._give_back()  # type: ignore[attr-defined]
        return super().acknowledge()  # type: ignore[misc]


def request_attributes(pool: Any) -> dict[str, Any]:
    """What the requests of a worker have to know of its pool."""
    attributes: dict[str, Any] = {"_pool_of_processes": bool(pool.uses_semaphore)}
    if pool.is_green:
        (attributes["_refusal"],) = IGNORE_ERRORS  # GreenletExit: ends a greenlet without a word
    return attributes


def is_solo(pool: Any) -> bool:
    """Whether jobs run in the consumer's own thread."""
    return type(pool).__module__ == "celery.concurrency.solo"


def blocks_consumer(pool: Any) -> Callable[[], bool]:
    """Whether the consumer that hands a job to ``pool`` now waits there until some job ends."""
    if is_solo(pool):
        return lambda: True
    if pool.is_green:
        return lambda: len(state.reserved_requests) >= pool.limit
    return lambda: False


class Stopper(threading.Thread):
    """Gives back what waits as soon as the worker is told to stop.

    A thread, since the consumer's own may be busy with a job for hours (solo), wait for a free
    slot (gevent) or sleep in a signal handler (soft shutdown).
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(name="superfetch-stopper", daemon=True)
        self.worker = worker
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL):
            if told_to_stop():
                say_so()
                self.give_back()

    def stop(self) -> None:
        """Look no more; the consumer's thread does what is left."""
        self._over.set()

    def give_back(self) -> None:
        """Give back what is claimed and not started; never raises."""
        try:
            connection = self.worker.consumer.connection
            channels = list(connection.transport.channels or ()) if connection else []
            count = sum(
                channel.give_back_waiting()
                for channel in channels
                if hasattr(channel, "give_back_waiting")
            )
        except Exception:  # the channel's close gives it back
            logger.exception("What waits could not be given back yet.")
        else:
            if count:
                logger.info("Told to stop: %d jobs went back to their queues.", count)


# -- signals


def wrap_handlers(worker: Any) -> None:
    """Be asked before Celery's handlers of a cold shutdown, which report last and block first."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        handler: Any = signal.getsignal(number)
        if getattr(handler, "__name__", "") == "worker_Cold":
            with suppress(ValueError):  # embedded in a thread, where nobody handles signals
                signal.signal(number, partial(_on_cold, worker, handler))


def _on_cold(worker: Any, handler: Callable[..., Any], number: int, frame: Any) -> None:
    say_so()
    pool = worker.pool
    if pool is not None and pool.is_green:
        # The handler waits and joins, which no code may that runs in the hub.
        pool.spawn_n(handler, number, frame)
    elif pool is not None and is_solo(pool) and _waits_softly(worker):
        # To sleep in the handler would be to sleep on top of the very job that is to finish.
        wait = worker.app.conf.worker_soft_shutdown_timeout
        logger.warning("Initiating Soft Shutdown, terminating in %s seconds", wait)
        worker.wait_for_soft_shutdown = lambda: None
        signal.signal(number, handler)
        state.should_stop = EX_OK
        timer = threading.Timer(wait, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
    else:
        handler(number, frame)


def _waits_softly(worker: Any) -> bool:
    conf = worker.app.conf
    busy = conf.worker_enable_soft_shutdown_on_idle or bool(state.active_requests)
    return conf.worker_soft_shutdown_timeout > 0 and bool(busy)
