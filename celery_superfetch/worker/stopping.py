"""A worker that was told to stop: it says so, starts nothing more, and gives back what waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.utils.log import get_logger

from ..model import forks
from ..owner.membership import Membership, memberships
from ..transport.deliveries import delivery_of
from .celery_request import CeleryRequest
from .pool import end_process, is_solo, process_ends, running
from .private_names import ASKS_FIRST

logger = get_logger(__name__)

#: Seconds between two looks for an order to stop. The signal handler itself may only set flags.
LOOK_INTERVAL = 0.5


def told_to_stop(membership: Membership) -> bool:
    """Whether the worker of ``membership`` is on its way out: by signal, remote control or an
    error."""
    return membership.heart.stopping or process_ends()


class Returnable(CeleryRequest):
    """Mixin for a request class: until it starts it may be given back; then it does not start."""

    #: Its greenlet is being killed.
    _greenlet_killed = False

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)
        delivery = delivery_of(message)
        if delivery is not None:
            asks = self.task.Strategy == ASKS_FIRST
            delivery.starts.wait(delivery.job, asks)

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """A cold shutdown, or a lost connection, ends what runs; it goes back to its queue."""
        self._greenlet_killed = pool.is_green
        # Celery notes it when it has told the result backend. Where that is away, the end of the
        # child would count as a revocation, whose ack loses the job.
        self._already_cancelled = True
        try:
            super().cancel(pool, *args, **kwargs)
        except NotImplementedError:
            if not is_solo(pool):
                self._already_cancelled = False
                logger.warning(
                    "Job %s[%s] cannot be ended: it runs in a thread. The worker waits for it.",
                    self.name,
                    self.id,
                )
                return
            # We are in a signal handler on top of the job itself: end it from here. A job that
            # Celery's own error ended would count as failed, and be gone.
            told = {name: kwargs[name] for name in ("emit_retry",) if name in kwargs}
            self._announce_cancelled(**told)
            if not self.acknowledged:
                self._give_back()
            raise WorkerTerminate(EX_FAILURE) from None

    def acknowledge(self) -> Any:
        """Celery takes the end of a killed greenlet for success; its ack would lose the job."""
        if self._greenlet_killed and not self.acknowledged:
            return self._give_back()
        return super().acknowledge()

    def _give_back(self) -> None:
        """Requeue a job that Celery cancelled; it is not the job's fault."""
        delivery = delivery_of(self.message)
        if delivery is None:
            return
        if told_to_stop(delivery.membership):
            # It goes back with the others, in their order, when the channel closes.
            delivery.end()
        else:
            self.acknowledged = True
            delivery.requeue()


class Stopper(threading.Thread):
    """Gives back what waits as soon as the worker is told to stop.

    A thread, since the consumer's own may be busy with a job for hours (solo), wait for a free
    slot (gevent) or sleep in a signal handler (soft shutdown).
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(name="superfetch-stopper", daemon=True)
        self.worker = worker
        #: It is this worker that was told.
        self._told = False
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL):
            if self._mark(self._told or process_ends()):
                with forks.kept_off():
                    self.give_back()

    def say_so(self) -> None:
        """Mark its owners as stopping; safe in a signal handler, since it only sets flags."""
        self._told = self._mark(True)

    def _mark(self, stopping: bool) -> bool:
        for membership in memberships():
            if membership.runner.worker is self.worker:
                membership.heart.stopping = stopping
        return stopping

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


def wrap_handlers(stopper: Stopper) -> None:
    """Be asked before Celery's handlers of a cold shutdown, which report last and block first."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        handler: Any = signal.getsignal(number)
        if getattr(handler, "__name__", "") == "worker_Cold":
            with suppress(ValueError):  # embedded in a thread, where nobody handles signals
                signal.signal(number, _asking(stopper, handler))


def _asking(stopper: Stopper, handler: Callable[..., Any]) -> Callable[[int, Any], None]:
    """Not a ``partial``: Python asks for the ``repr`` of what it finds in a handler's place, and
    that of a thread waits for a lock. Under gevent the next signal stopped the worker for ever."""
    return lambda number, frame: _on_cold(stopper, handler, number, frame)


def _on_cold(stopper: Stopper, handler: Callable[..., Any], number: int, frame: Any) -> None:
    stopper.say_so()
    worker = stopper.worker
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
        end_process()
        timer = threading.Timer(wait, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
    else:
        handler(number, frame)


def _waits_softly(worker: Any) -> bool:
    conf = worker.app.conf
    busy = conf.worker_enable_soft_shutdown_on_idle or running()
    return conf.worker_soft_shutdown_timeout > 0 and bool(busy)
