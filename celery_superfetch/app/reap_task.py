"""The reap task: beat sends it at each interval, and a worker's pool runs it. A run makes one
*pass* of the reaper: it looks at all owners (the part of a worker that claims jobs), and puts the
jobs of dead ones back on their queues.

``installation`` adds the task to each installed app. Beat, or another scheduler, calls
``ReapTask.apply_async``, which also moves parked jobs (scheduled for later) to their queues once
they are due. A lock lets one message of an app wait at a time. If beat dies between the lock and
the message, or the message is lost, none is sent for an hour; workers reap by themselves meanwhile.
A pass that dies with its process is not repeated: the next pass, of any reaper, finds what is left.

Modules of the reaper are imported where they are used: a producer, which only knows the task, does
not load them.
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
from .serializers import accepted_serializer

logger = one_line_each(get_logger(__name__))

APP_HEADER = "superfetch_app"  # header of the task's message: the name of the app that sent it
LOGGER_OF_BEAT = "celery.beat"
REAP_EXPIRES_S = 3600  # seconds until a message expires, and its lock, if no run has released it


class RoutineLines(logging.Filter):
    """A filter that makes Celery's INFO lines about the reap task DEBUG, on loggers that write one
    for each task: an app pays for a line each few seconds, and a pass that did something has a line
    of its own. All apps of a process share these loggers, so that a process gets the filter only
    when it is a worker or a beat of an installed app."""

    def filter(self, record: logging.LogRecord) -> bool:
        args = record.args or ()
        is_of_reaping = (
            args.get("name") == REAP_TASK if isinstance(args, Mapping) else REAP_TASK in args
        )
        if is_of_reaping and record.levelno == logging.INFO:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


routine_lines = RoutineLines()


def lock_of(app_name: str) -> str:
    """Return the lock that an app's beat takes for a message, and the task's run releases. If apps
    shared it, a message that no worker of one app consumes would keep back those of the others, for
    an hour: an autoscaler would start no worker of these apps."""
    return f"sent:{app_name}"


class ReapTask(QuietTask):
    """The reap task: it is sent if an owner is registered and no message of it waits."""

    _last_tick = 0  # the last tick that the beat of this process has recorded

    def apply_async(self, *args: Any, **options: Any) -> Any:
        """Send the task; return None if no owner is registered, or a message of this app waits.
        Every scheduler of beat calls this. If no worker served the queue, messages would pile up,
        and an autoscaler that reads the queue's length would keep its workers."""
        app_name = self.app.main or ""
        # If the server cannot be asked, the task is sent: a worker runs it when the server is back.
        wanted = True
        with suppress(Exception), client_of(self.app) as client:
            from ..store.owner_registry import OwnerRegistry
            from ..store.parked_jobs import ParkedJobs
            from ..store.stats import Stats

            database = database_of(self.app, client)
            # While no worker runs, no other process does this: the jobs that are due lengthen their
            # queue, and an autoscaler that has stopped all workers starts some.
            ParkedJobs(database).release({})
            if "producer" in options:  # only beat's schedulers bring their own producer
                logging.getLogger(LOGGER_OF_BEAT).addFilter(routine_lines)
                self._last_tick = Stats(database).record_tick(self._last_tick)  # for `status`
            wanted = OwnerRegistry(database).has_owners() and database.try_lock(
                lock_of(app_name), REAP_EXPIRES_S
            )
        if not wanted:
            return None
        headers = {**(options.pop("headers", None) or {}), APP_HEADER: app_name}
        try:
            serializer = accepted_serializer(self.app)
            defaults = {"expires": REAP_EXPIRES_S, "serializer": serializer}
            return super().apply_async(*args, **{**defaults, **options, "headers": headers})
        except QueueNotFound as exc:
            logger.warning(
                "Beat does not send %s: %s. Workers still recover the jobs of dead workers. To "
                "let beat trigger it too, route the task to a queue of the app.",
                REAP_TASK,
                exc,
            )
        except Exception:
            with suppress(Exception), client_of(self.app) as client:
                database_of(self.app, client).unlock(lock_of(app_name))
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
            # Another app has sent it, if both use one queue.
            sender = self.request.get(APP_HEADER, app.main or "")
            database_of(app, client).unlock(lock_of(str(sender)))
            by = f"beat's task on {self.request.hostname}"
            return str(scheduled_pass(reaper_of(app, client), by))
