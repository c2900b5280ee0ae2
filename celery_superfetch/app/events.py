"""Celery events for monitors: a worker sends them in its consumer's loop, as it sends those of
tasks, and in no thread that a fork could meet. Others (beat's task, a command) send at once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

logger = get_logger(__name__)

MOST = 1000  # events that wait for the loop; what comes on top while it does not turn is dropped
TIMEOUT = 2.0  # seconds that a process without such a loop waits for the broker ...
SILENCE = 60.0  # ... and sends nothing after it waited in vain

#: What a signal brings -> the event of it, and what that tells besides whose job it is.
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "recovery": ("superfetch-recovered", ("reason", "strikes", "recoveries")),
    "job": ("superfetch-killed", ("reason", "strikes", "recoveries")),
    "lost": ("superfetch-ownership-lost", ()),
}

#: Theirs that are none of a task: exporters look those up in a table of Celery's, and end.
GROUP = "superfetch"


class Monitors:
    """Whoever listens to an app's events, as one process talks to them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.pid = os.getpid()
        self.worker: Any = None  # whose MainProcess this is; others always send
        self.wake: Callable[[], object] = bool  # makes its loop turn, called from any thread
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._dispatcher: Any = None
        self._silent_until = 0.0

    def send(self, type: str, **fields: Any) -> None:
        """Send an event, if this process is one that sends some; never raises."""
        if self.worker is None:
            self._send_here(type, fields)
        elif (waiting := len(self._waiting)) <= MOST:
            self._waiting.append((type, fields))
            self.wake()
            if waiting == MOST:
                logger.warning("%d events for monitors wait for the loop; more are dropped.", MOST)

    def drain(self) -> None:
        """Send what waits, in the consumer's loop."""
        dispatcher = self._waiting and getattr(self.worker.consumer, "event_dispatcher", None)
        if not dispatcher:  # it comes with the connection, and later than the first pass
            return
        # As those of tasks: sent with -E (no groups: all), or while a monitor has them switched on.
        groups = dispatcher.groups
        (groups.add if "task" in groups else groups.discard)(GROUP)
        if "task" in dispatcher.buffer_group:
            dispatcher.buffer_group = {*dispatcher.buffer_group, GROUP}
        while self._waiting:
            type, fields = self._waiting.popleft()
            dispatcher.send(type, **fields)

    def close(self) -> None:
        """Close the connection of a process without a loop."""
        dispatcher, self._dispatcher = self._dispatcher, None
        with suppress(Exception):
            if dispatcher is not None:
                dispatcher.connection.release()

    def _send_here(self, type: str, fields: dict[str, Any]) -> None:
        if monotonic() < self._silent_until:
            return
        try:
            self._dispatcher = self._dispatcher or self._connect()
            self._dispatcher.send(type, **fields)
        except Exception as exc:  # monitors are not worth more than a line in the log
            text = "Monitors miss event %s (%s), and all others for %g s. Jobs go on."
            logger.warning(text, type, exc, SILENCE)
            self._silent_until = monotonic() + SILENCE
            self.close()

    def _connect(self) -> Any:
        connection = self.app.connection_for_write()
        if connection.get_transport_cls().driver_type == "redis":
            waits = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), TIMEOUT)
            connection.transport_options.update(waits)
        task = self.app.current_worker_task
        name = task and task.request.hostname
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            return self.app.events.Dispatcher(connection, name, buffer_while_offline=False)
        except Exception:
            connection.release()
            raise


def monitors_of(app: Celery) -> Monitors:
    """Those of this process; what it inherited by a fork is its parent's."""
    monitors: Monitors | None = getattr(app, "_superfetch_monitors", None)
    if monitors is None or monitors.pid != os.getpid():
        monitors = app._superfetch_monitors = Monitors(app)
    return monitors


def reporter(app: Celery, argument: str) -> Callable[..., None]:
    """A receiver that tells monitors of what its signal brings, as ``EVENTS`` names it."""
    type, names = EVENTS[argument]

    def report(**named: Any) -> None:
        what = named[argument]
        job = getattr(what, "job", what)
        if what.task_id:
            more = {name: getattr(what, name) for name in names}
            own = {"uuid": what.task_id, "name": what.task}
            monitors_of(app).send(type, **own, queue=job.queue_list, owner=job.owner, **more)

    return report
