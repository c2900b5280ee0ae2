"""The task of ``celery superfetch drill``: it does nothing, for a while, so that the worker that
has it can be killed."""

from __future__ import annotations

import time

from celery import Celery

from ..model.config import DRILL_TASK


def add_drill_task(app: Celery) -> None:
    @app.task(
        name=DRILL_TASK,
        shared=False,  # else it would be registered with every other app of the process
        ignore_result=True,
        acks_late=True,
        reject_on_worker_lost=True,
    )
    def drill(seconds: float) -> None:
        time.sleep(seconds)
