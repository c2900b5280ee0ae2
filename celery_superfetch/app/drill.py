"""The task of ``celery superfetch drill``: it does nothing, for a while, so that the worker that
has it can be killed."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery

from ..model.config import DRILL_HEADER, DRILL_MAX_S, DRILL_TASK
from ..model.records import real


def add_drill_task(app: Celery) -> None:
    @app.task(
        name=DRILL_TASK,
        shared=False,  # else it would be registered with every other app of the process
        ignore_result=True,
        acks_late=True,
        reject_on_worker_lost=True,
        bind=True,
    )
    def drill(self: Any, seconds: Any = 0) -> None:
        time.sleep(sleep_s(seconds, self.request.get(DRILL_HEADER)))


def sleep_s(seconds: Any, header: object) -> float:
    """Return for how long (s) a job sleeps: not at all without the header of the command, and for
    an hour at most. If the task slept for as long as a message says, anyone who may publish could
    hold every slot of a worker for years."""
    return min(max(0.0, real(seconds)), DRILL_MAX_S) if header is True else 0.0
