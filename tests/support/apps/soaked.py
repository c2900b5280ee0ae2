"""The soak's app: its jobs write down which worker ran them, and as which message they came."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Reject

from support.apps.build import build_app
from support.servers.ledger import Ledger


def book(task: Any) -> Ledger:
    # kombu makes this tag when a message is published, and no redelivery changes it.
    message = (task.request.properties or {}).get("delivery_tag", "")
    worker = os.environ.get("LEDGER_WORKER", "")
    return Ledger(os.environ["LEDGER_URL"], worker=worker, message=message)


def add_tasks(app: Celery) -> None:
    """Register `soak.work`, `soak.again` and `soak.refused`."""

    @app.task(name="soak.work", bind=True, shared=False)
    def work(self: Any, job: str, seconds: float) -> None:
        ledger = book(self)
        ledger.started(job)
        time.sleep(seconds)
        ledger.finished(job)

    @app.task(name="soak.again", bind=True, shared=False, max_retries=1)
    def again(self: Any, job: str) -> None:
        """Retries once; each of the two is a job of its own in the ledger."""
        ledger, attempt = book(self), f"{job}#{self.request.retries}"
        ledger.started(attempt)
        if not self.request.retries:
            ledger.gave_up(attempt, "retried")
            raise self.retry(countdown=0.2)
        ledger.finished(attempt)

    @app.task(name="soak.refused", bind=True, shared=False)
    def refused(self: Any, job: str) -> None:
        """Rejected with requeue the first time."""
        ledger = book(self)
        ledger.started(job)
        if ledger.first(job):
            ledger.gave_up(job, "rejected")
            raise Reject("not now", requeue=True)
        ledger.finished(job)


app = build_app(os.environ)
add_tasks(app)
