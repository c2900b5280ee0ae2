"""The reap task: beat sends it at each interval, and a worker's pool makes one pass of the reaper
by it. A producer that only knows the task loads no module of the reaper.

``installation`` adds it to each installed app. Beat, or another scheduler, calls
``ReapTask.apply_async``, which also moves scheduled jobs that are due to their queues. A lock lets
one message wait at a time. If beat dies between the lock and the message, or the message is lost,
none is sent for an hour; workers reap by themselves meanwhile. A pass that dies with its process is
not repeated: the next pass, of any reaper, finds what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery
from celery.exceptions import QueueNotFound
from celery.utils.log import get_logger

from ..model.config import REAP_TASK
from ..model.log_text import one_line_each
from .broker import client_of, database_of
from .quiet_trace import QuietTask

logger = one_line_each(get_logger(__name__))

LOCK_SENT = "sent"  # scope of the lock that beat takes for a message, and the task's run releases
LOGGER_OF_BEAT = "celery.beat"
WAITS = 3600  # seconds until a message expires, and its lock, if no run has released it


class RoutineLines(logging.Filter):
    """Makes Celery's INFO lines about the reap task DEBUG, on loggers that write one for each task:
    an app pays for a line each few seconds, and a pass that did something has a line of its own.
    All apps of a process share these loggers, so that a process gets the filter only when it is a
    worker or a beat of an installed app."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args or ()
        is_ours = args.get("name") == REAP_TASK if isinstance(args, Mapping) else REAP_TASK in args
        if is_ours and record.levelno == logging.INFO:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


routine_lines = RoutineLines()


class ReapTask(QuietTask):
    """A task that is sent if an owner is registered and no message of it waits."""

    _last_tick = 0  # of the beat in this process

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send the task; return None if no owner is registered, or a message of it waits already.
        Every scheduler of beat calls this. If no worker served the queue, messages would pile up,
        and an autoscaler that reads the queue's length would keep its workers."""
        wanted = True  # a server that cannot be asked may be back when a worker runs the task
        with suppress(Exception), client_of(self.app) as client:
            from ..store.history import History
            from ..store.parked import Parked
            from ..store.registry import Registry

            database = database_of(self.app, client)
            # A fleet that was scaled to zero is started again for scheduled jobs that are due.
            Parked(database).release({})
            if "producer" in options:  # only beat's schedulers bring their own producer
                logging.getLogger(LOGGER_OF_BEAT).addFilter(routine_lines)
                self._last_tick = History(database).tick(self._last_tick)  # for `status`
            wanted = Registry(database).anybody() and database.take_turn(LOCK_SENT, WAITS)
        if not wanted:
            return None
        try:
            return super().apply_async(*args, **{"expires": WAITS, **options})
        except QueueNotFound as exc:
            logger.warning(
                "%s is not sent: %s. Workers reap all the same. For beat to see to it as well, "
                "route the task to a queue of yours.",
                REAP_TASK,
                exc,
            )
        except Exception:
            with suppress(Exception), client_of(self.app) as client:
                database_of(self.app, client).end_turn(LOCK_SENT)
            raise


def add_reap_task(app: Celery) -> None:
    """Add the task to an app."""

    @app.task(
        base=ReapTask,
        name=REAP_TASK,
        bind=True,
        # Shared, it would be registered with every other app of the process.
        shared=False,
        ignore_result=True,
        # A run that is lost needs no recovery: the next one does its work.
        acks_late=False,
        reject_on_worker_lost=False,
    )
    def reap(self: Any) -> str:
        from .reaper import reaper_of, scheduled_pass

        with client_of(app) as client:
            database_of(app, client).end_turn(LOCK_SENT)
            by = f"beat's task on {self.request.hostname}"
            return str(scheduled_pass(reaper_of(app, client), by))
