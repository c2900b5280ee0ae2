"""The notice of a dead-lettered job (failure notification): a job itself, whose run informs the
caller, and the receivers, errbacks and chord (``announcement``).

``Notices`` makes its message, in a worker or in a reaper. The script that dead-letters the job
(``kill.lua``) pushes it to the front of the job's own queue, and a worker's pool runs it. It is
protected as every job is: recovered if its process dies, and dead-lettered if that happens again
and again. If it fails, it is parked, and tried later as the same message: its strikes stay in its
history, and the dead job's record has how far it came.
"""

from __future__ import annotations

import base64
from math import inf
from time import monotonic, time
from typing import Any

from celery import Celery, Task
from celery.exceptions import Reject
from celery.utils.log import get_logger
from kombu.serialization import dumps
from kombu.utils.json import dumps as to_json
from kombu.utils.uuid import uuid

from ..model.config import ANNOUNCE_TASK, DEAD_ID, DEAD_ID_HEADER
from ..model.log_text import one_line_each
from ..store.database import Database
from .backend_turn import PATIENCE, NotNow, held_off, pause
from .queues import separator_of

logger = one_line_each(get_logger(__name__))

#: Runs of a notice that may end with their process: errbacks, receivers, payloads kill, too. The
#: next one tells the caller alone.
RUNS = 3

#: A notice that failed waits twice as long after each further time, so often at most.
DOUBLED = 8


class Postponed(Reject):
    """Raised by a task whose job is to be tried later: the worker parks it for so many seconds."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason, requeue=True)
        self.args = reason, seconds  # it goes to another process, which calls this with them
        self.seconds = seconds


class AnnounceTask(Task):
    """The task of notices."""

    @classmethod
    def annotate(cls) -> None:
        """Ignore ``task_annotations``: those of all tasks (a rate limit, say) are not for this
        one."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send it, also where tasks run in their caller (``task_always_eager``)."""
        return self.app.send_task(self.name, args, kwargs, **options)


def add_announce_task(app: Celery) -> None:
    @app.task(
        base=AnnounceTask,
        name=ANNOUNCE_TASK,
        bind=True,
        shared=False,  # else it would be registered with every other app of the process
        ignore_result=True,
        acks_late=True,
        acks_on_failure_or_timeout=False,  # one that is cut short has not told
        reject_on_worker_lost=True,
        rate_limit=0,  # none, whatever ``task_default_rate_limit`` says
        superfetch_strike_limit=RUNS + 2,  # two careful runs, the last one a solo run (probation)
    )
    def announce(self: Any) -> None:
        """Announce the dead job that the message names; if that fails, have it tried later."""
        from .announcement import Announcement

        header = self.request.get("superfetch") or {}
        dead_id = str(self.request.get(DEAD_ID_HEADER))
        careful = header.get("strikes", 0) >= RUNS
        announcement = Announcement(self.app, dead_id, str(self.request.id), careful=careful)
        try:
            announcement.make()
        except NotNow:  # which is no failure of its own
            announcement.store_progress()
            raise Postponed("another one waits for the result backend", pause()) from None
        except Exception:  # the result backend's errors are its own
            seconds = pause() * 2 ** min(announcement.progress.failures, DOUBLED)
            logger.exception(
                "Failure notification for dead job %s failed: its caller is not informed yet. It "
                "is tried again in %d s.",
                announcement.title,
                seconds,
            )
            announcement.store_progress(failed=True)
            raise Postponed("it failed", seconds) from None


class Notices:
    """Makes the notices of an app: each for a queue list, as kombu would store it there. The script
    that kills puts the job's id in the dead set into it."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._looked, self._held_off = -inf, False

    def not_before(self, database: Database) -> float:
        """Return when a notice may run (s since the epoch; 0: at once). Notices that would wait for
        the result backend get no slot: there may be thousands, in front of all other jobs."""
        if monotonic() - self._looked > PATIENCE:
            self._looked, self._held_off = monotonic(), held_off(database)
        return time() + pause() if self._held_off else 0.0

    def __call__(self, queue_list: str) -> bytes:
        """Return the message of a new notice; empty if it cannot be made: then no caller is
        informed."""
        id = uuid()
        queue, _, step = queue_list.partition(separator_of(self.app))
        try:
            message = self.app.amqp.as_task_v2(id, ANNOUNCE_TASK, ignore_result=True)
            how = dumps(message.body, serializer=self.app.conf.task_serializer)
        except Exception:  # of a serializer that is not there, or has no key
            logger.exception(
                "No notice could be made for a killed job of queue %s: it is in the dead set, and "
                "its caller is not told. See whether task_serializer works here.",
                queue,
            )
            return b""
        content_type, encoding, body = how
        raw = body if isinstance(body, bytes) else body.encode()
        properties = {
            "correlation_id": id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": int(step or 0),
            "body_encoding": "base64",
            "delivery_tag": uuid(),
        }
        return to_json(
            {
                "body": base64.b64encode(raw).decode(),
                "content-encoding": encoding,
                "content-type": content_type,
                "headers": {**message.headers, DEAD_ID_HEADER: DEAD_ID},
                "properties": properties,
            }
        ).encode()
