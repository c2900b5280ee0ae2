"""The shop, and a task of the real celery-batches."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery_batches import Batches

from support.apps.shop import app, ledger


@app.task(base=Batches, name="batched.batch", flush_every=3, flush_interval=1, shared=False)
def batch(requests: Any) -> None:
    """A pill kills whoever runs it, an accident only once; an idler sleeps."""
    book = ledger()
    jobs = [request.args[0] for request in requests]
    for job in jobs:
        book.started(job)
    for job in jobs:
        if job == "pill" or (job == "accident" and book.first(job)):
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "idler":
            time.sleep(60)
    for job in jobs:
        book.finished(job)
