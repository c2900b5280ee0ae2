"""The notice of a dead-lettered job (failure notification): a job itself, whose run informs the
caller, and the receivers, errbacks and chord (``announcement``).

``Notices`` makes its message: a reaper calls it for the jobs of a dead owner (the part of a worker
that claims jobs), and a worker (``Settlement``) for a job of its own. The script that dead-letters
the job (``kill.lua``) also pushes the notice to the front of the job's own queue. Before a worker
gives it a slot, the gate asks ``not_before``. A worker's pool runs it; ``installation`` adds the
task.

A notice is protected as every job is. If its process is killed, it is recovered: put back on its
queue with a *strike*, one more in the history that the server keeps of a job. After
``NOTICE_RUNS_MAX`` strikes its runs only store the result; two strikes later the notice itself is
dead-lettered. Then the caller is not informed: a notice gets no notice, and no ``job_killed``. The
log has an error, and the dead set has both jobs. If a run fails, the notice is parked (kept in
Redis until a time) and tried later as the same message: its strikes stay in its history, and the
dead job's record says how far it came.
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
from ..model.foreign import loggable
from ..model.log_text import one_line_each
from ..store.database import Database
from ..store.dead_set import BeingRetried
from .backend_lock import LOCK_WAIT_S, NotNow, held_off, pause
from .patient_calls import NotSent
from .queues import list_names_of
from .serializers import accepted_serializer

logger = one_line_each(get_logger(__name__))

#: Runs of a notice that may lose their process: an errback, a receiver or the payload may kill it.
#: Each later run is careful: it stores the result for the caller and does nothing else.
NOTICE_RUNS_MAX = 3

#: The wait of a notice doubles with each of its failures, but not more often than this.
DOUBLINGS_MAX = 8


class Postponed(Reject):
    """The end of a run whose job is to be tried later: the worker parks the job for ``seconds``."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason, requeue=True)
        self.args = reason, seconds  # it is pickled; the other process calls the class with these
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
        shared=False,  # shared, it would be registered with every other app of the process
        ignore_result=True,
        acks_late=True,
        # A run that is cut short has not informed the caller. Celery 5.7 has a setting for each
        # case, and prefers the app's to the first of these.
        acks_on_failure_or_timeout=False,
        acks_on_failure=False,
        acks_on_timeout=False,
        reject_on_worker_lost=True,
        rate_limit=0,  # none, whatever ``task_default_rate_limit`` says
        # Two careful runs. The last one is a solo run: the worker runs no other job meanwhile, so
        # that its death is certainly the fault of this one.
        superfetch_strike_limit=NOTICE_RUNS_MAX + 2,
    )
    def announce(self: Any) -> None:
        """Announce the dead job that the message names; if that fails, try it later."""
        from .announcement import Announcement

        header = self.request.get("superfetch") or {}  # counters, added to each delivery
        dead_id = str(self.request.get(DEAD_ID_HEADER))
        careful = header.get("strikes", 0) >= NOTICE_RUNS_MAX
        announcement = Announcement(self.app, dead_id, str(self.request.id), careful=careful)
        try:
            announcement.make()
        except NotNow:  # another notice asks the result backend; this one has not failed
            announcement.store_progress()
            raise Postponed(
                "another failure notification waits for the result backend", pause()
            ) from None
        except BeingRetried:
            announcement.store_progress()
            raise Postponed("the dead job is being retried", pause()) from None
        # A result backend raises errors of its own library. After NotSent the notice would be
        # requeued at once, without its progress: its next run would call the receivers again.
        except (Exception, NotSent):
            seconds = pause() * 2 ** min(announcement.progress.failures, DOUBLINGS_MAX)
            logger.exception(
                "Failure notification for dead job %s failed: its caller is not informed yet. "
                "Tried again in %d s. Check the result backend; the traceback follows.",
                announcement.title,
                seconds,
            )
            announcement.store_progress(failed=True)
            raise Postponed("the failure notification failed", seconds) from None


class Notices:
    """The maker of an app's notices: each for a queue list (the Redis list of one queue and
    priority), as kombu would store it there. ``DEAD_ID`` is a placeholder in the notice:
    ``kill.lua`` replaces it by the job's id in the dead set."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self._looked, self._held_off = -inf, False

    def not_before(self, database: Database) -> float:
        """Return when a notice may run (s since the epoch; 0: at once). A notice that would have to
        wait for the result backend gets no slot: there may be thousands, in front of all other
        jobs."""
        if monotonic() - self._looked > LOCK_WAIT_S:
            self._looked, self._held_off = monotonic(), held_off(database)
        return time() + pause() if self._held_off else 0.0

    def __call__(self, queue_list: str) -> bytes:
        """Return the message of a new notice; empty if it cannot be made: then the job is
        dead-lettered all the same, and its caller is not informed."""
        try:
            return self._make(queue_list)
        # Of a serializer that is not there, or has no key, or of the user's own AMQP class. If it
        # were raised, the job would not be dead-lettered, and would end one worker after another.
        except Exception as exc:
            logger.error(
                "No failure notification could be made for a job moved to the dead set "
                "(queue=%s): its caller is not informed. Check that task_serializer and "
                "accept_content work in this process; the traceback follows.",
                queue_list,
                exc_info=loggable(exc),
            )
            return b""

    def _make(self, queue_list: str) -> bytes:
        """Return the message of a new notice. Raises what the app's serializer raises."""
        id = uuid()
        queue, step = list_names_of(self.app).split(queue_list)
        message = self.app.amqp.as_task_v2(id, ANNOUNCE_TASK, ignore_result=True)
        how = dumps(message.body, serializer=accepted_serializer(self.app))
        content_type, encoding, body = how
        raw = body if isinstance(body, bytes) else body.encode()
        properties = {
            "correlation_id": id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": step,
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
