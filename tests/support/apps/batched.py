"""The shop, and a task of the real celery-batches."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery_batches import Batches

from support.apps.build import build_app
from support.servers.ledger import Ledger

app = build_app(os.environ)


@app.task(base=Batches, name="batched.batch", flush_every=3, flush_interval=1, shared=False)
def batch(requests: Any) -> None:
    """A pill kills whoever runs it, an accident only once; an idler sleeps."""
    book = Ledger(os.environ["LEDGER_URL"])
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
