"""The task of `superfetch drill`: it sleeps, so that the worker that runs it can be killed.

``installation`` adds the task to each installed app. The command (``console/drill.py``) sends jobs
of this task to a queue that the operator names, and kills a worker. A reaper puts the jobs that the
worker was running back on their queue, and another worker runs them: they sleep again. If the
command dies, its jobs stay, and sleep for their time.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from ..model.config import DRILL_HEADER, DRILL_MAX_S, DRILL_TASK
from ..model.records import real


def add_drill_task(app: Celery) -> None:
    """Add the task to an app."""

    @app.task(
        name=DRILL_TASK,
        shared=False,  # shared, it would be registered with every other app of the process
        ignore_result=True,
        acks_late=True,
        reject_on_worker_lost=True,
        bind=True,
    )
    def drill(self: Any, seconds: Any = 0) -> None:
        time.sleep(sleep_s(seconds, self.request.get(DRILL_HEADER)))


def sleep_s(seconds: Any, header: object) -> float:
    """Return for how long (s) a job sleeps: not at all without the header that the command sets,
    and for an hour at most. If the task slept for as long as a message says, any producer could
    hold every slot of a worker for years."""
    return min(max(0.0, real(seconds)), DRILL_MAX_S) if header is True else 0.0
