"""The shop, and a task of the real celery-batches."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery_batches import Batches

from support.apps.shop import app, ledger


@app.task(base=Batches, name="batched.batch", flush_every=3, flush_interval=1, shared=False)
def batch(requests: Any) -> None:
    """An accident kills whoever runs it, once."""
    book = ledger()
    jobs = [request.args[0] for request in requests]
    for job in jobs:
        book.started(job)
    for job in jobs:
        if job == "accident" and book.first(job):
            os.kill(os.getpid(), signal.SIGKILL)
    for job in jobs:
        book.finished(job)
