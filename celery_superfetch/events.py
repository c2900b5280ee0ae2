"""Celery events: what monitors (``celery events``, Flower) see of recoveries and kills.

They are sent by a thread of their own, on a connection of its own: whoever reports something
neither waits for it nor fails by it.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Any
from weakref import WeakSet

from celery import Celery
from celery.utils.log import get_logger

from .dead_set import DeadJob
from .recovery import Recovery
from .signals import LostJob

logger = get_logger(__name__)

#: Events that wait at most; what comes on top while the broker does not take them is dropped.
MOST = 1000

#: Seconds without an event after which the thread and its connection end.
IDLE = 5.0

#: Seconds that an announcement, or a command at its end, waits until its events are out.
FLUSH = 2.0


class Monitors:
    """Whoever listens to an app's events, as one process talks to them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.pid = os.getpid()
        #: The worker whose MainProcess this is. Others (beat's task, a command) always send.
        self.worker: Any = None
        self._waiting: Queue[tuple[str | None, str, dict[str, Any]]] = Queue(MOST)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._hopeless = False

    def send(self, type: str, **fields: Any) -> None:
        """Send an event soon, if this process is one that sends some; never raises or waits."""
        if self.worker is not None and not _wanted(self.worker):
            return
        with self._lock:
            try:
                self._waiting.put_nowait((self._hostname(), type, fields))
            except Full:
                if not self._hopeless:
                    logger.warning("%d events wait for the broker; others are dropped.", MOST)
                self._hopeless = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="superfetch-events", daemon=True
                )
                self._thread.start()

    def flush(self, timeout: float = FLUSH) -> None:
        """Wait until all is sent, but no longer; and not at all once that was in vain."""
        if os.getpid() != self.pid:
            return  # a fork's exit
        queue = self._waiting
        with queue.all_tasks_done:
            if self._hopeless or not queue.unfinished_tasks:
                return
            done = queue.all_tasks_done.wait_for(lambda: not queue.unfinished_tasks, timeout)
        if not done:
            self._hopeless = True
            logger.warning("The broker took no event for %g s: nobody waits for it now.", timeout)

    def _hostname(self) -> str | None:
        if self.worker is not None:
            return str(self.worker.hostname)
        task = self.app.current_task
        return getattr(task.request, "hostname", None) if task else None

    def _run(self) -> None:
        connection = None
        while True:
            try:
                hostname, type, fields = self._waiting.get(timeout=IDLE)
            except Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._thread = None
                        break
                continue
            try:
                connection = connection or self._connect()
                with self.app.events.Dispatcher(connection, hostname=hostname) as dispatcher:
                    dispatcher.send(type, **fields)
                self._hopeless = False
            except Exception as exc:  # monitors are not worth more than a line in the log
                logger.warning("Event %s could not be sent: %s", type, exc)
                _close(connection)
                connection = None
            finally:
                self._waiting.task_done()
        _close(connection)

    def _connect(self) -> Any:
        connection = self.app.connection_for_write()
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
        return connection


def _wanted(worker: Any) -> bool:
    """As for every task event of a worker: with -E, or once a monitor has switched them on."""
    events = getattr(worker.consumer, "event_dispatcher", None)
    if events is None:  # it comes with the connection, and later than the first pass
        return bool(worker.task_events)
    return events.enabled and (not events.groups or "task" in events.groups)


def _close(connection: Any) -> None:
    if connection is not None:
        with suppress(Exception):
            connection.release()


#: Those of this process that may still have something to say at its end.
_all: WeakSet[Monitors] = WeakSet()


@atexit.register
def _flush_all() -> None:
    for monitors in list(_all):
        monitors.flush()


def monitors_of(app: Celery) -> Monitors:
    """Those of this process; what it inherited by a fork is its parent's."""
    monitors: Monitors | None = getattr(app, "_superfetch_monitors", None)
    if monitors is None or monitors.pid != os.getpid():
        monitors = app._superfetch_monitors = Monitors(app)
        _all.add(monitors)
    return monitors


def report_recoveries(app: Celery) -> Callable[..., None]:
    """A receiver of ``job_recovered`` that tells monitors."""

    def report(recovery: Recovery, **_: Any) -> None:
        if recovery.task_id:
            monitors_of(app).send(
                "task-recovered",
                uuid=recovery.task_id,
                name=recovery.task,
                queue=recovery.job.queue_list,
                reason=recovery.reason,
                strikes=recovery.strikes,
                recoveries=recovery.recoveries,
                owner=recovery.job.owner,
            )

    return report


def report_kills(app: Celery) -> Callable[..., None]:
    """A receiver of ``job_killed`` that tells monitors."""

    def report(job: DeadJob, **_: Any) -> None:
        if job.task_id:
            monitors_of(app).send(
                "task-killed",
                uuid=job.task_id,
                name=job.task,
                queue=job.queue_list,
                reason=job.reason,
                strikes=job.strikes,
                recoveries=job.recoveries,
                owner=job.owner,
            )

    return report


def report_losses(app: Celery) -> Callable[..., None]:
    """A receiver of ``ownership_lost`` that tells monitors."""

    def report(lost: LostJob, **_: Any) -> None:
        if lost.task_id:
            monitors_of(app).send(
                "task-ownership-lost",
                uuid=lost.task_id,
                name=lost.task,
                queue=lost.queue_list,
                owner=lost.owner,
            )

    return report
