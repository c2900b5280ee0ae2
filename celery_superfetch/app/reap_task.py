"""The task that beat schedules; a producer that knows it loads nothing of what it does."""

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

LOCK_SENT = "sent"  # scope of the lock on the task's message: the one that runs takes it away
LOGGER_OF_BEAT = "celery.beat"
WAITS = 3600  # seconds for which one that got lost holds off the next


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
    """A task that is sent where there is something to do, and that waits once at most."""

    _last_tick = 0  # of the beat in this process

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send it; None where nobody is registered, or one waits already. Here and not in the
        schedule, by which each of beat's schedulers comes: what no worker serves would pile up, and
        keep awake whoever scales by the length of the queue."""
        wanted = True  # whoever cannot be asked may be there again when a worker runs it
        with suppress(Exception), client_of(self.app) as client:
            from ..store.history import History
            from ..store.parked import Parked
            from ..store.registry import Registry

            database = database_of(self.app, client)
            # What is due wakes up a fleet that was scaled to zero.
            Parked(database).release({})
            if "producer" in options:  # each of beat's schedulers hands its own on, and nobody else
                logging.getLogger(LOGGER_OF_BEAT).addFilter(routine_lines)
                self._last_tick = History(database).tick(self._last_tick)
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
    @app.task(
        base=ReapTask,
        name=REAP_TASK,
        bind=True,
        # Shared, it would be registered with every other app of the process.
        shared=False,
        ignore_result=True,
        # One that is lost is made up for by the next; it must not be recovered itself.
        acks_late=False,
        reject_on_worker_lost=False,
    )
    def reap(self: Any) -> str:
        from .reaper import reaper_of, scheduled_pass

        with client_of(app) as client:
            database_of(app, client).end_turn(LOCK_SENT)
            by = f"beat's task on {self.request.hostname}"
            return str(scheduled_pass(reaper_of(app, client), by))
