"""The shop, whose prefork worker loses a child just as it reconnects."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from apps.build import build_app
from celery_superfetch.worker import prefork

remember = prefork._remember


def remember_the_dead(processes: Any, kept: dict[Any, Any]) -> None:
    """Between the pool's look at its children and ours at their jobs."""
    for job in kept.values():
        child = job._write_to
        if job._accepted and child is not None and child._is_alive():
            os.kill(child.pid, signal.SIGKILL)
            while child._is_alive():
                time.sleep(0.01)
    if os.environ.get("OF_THE_LIVING"):  # the control
        kept = {id: job for id, job in kept.items() if job._write_to._is_alive()}
    remember(processes, kept)


prefork._remember = remember_the_dead

app = build_app(os.environ)
