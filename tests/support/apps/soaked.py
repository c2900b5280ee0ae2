"""The soak's app: its jobs write down which worker ran them, and as which message they came."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from celery.exceptions import Reject, Retry

from support.apps.shop import app
from support.servers.ledger import Ledger


def book(task: Any) -> Ledger:
    # kombu makes this tag when a message is published, and no redelivery changes it.
    message = (task.request.properties or {}).get("delivery_tag", "")
    worker = os.environ.get("LEDGER_WORKER", "")
    return Ledger(os.environ["LEDGER_URL"], worker=worker, message=message)


@app.task(name="soak.work", bind=True, shared=False)
def work(self: Any, job: str, seconds: float) -> None:
    own = book(self)
    own.started(job)
    time.sleep(seconds)
    own.finished(job)


#: Task id -> ledger and name of each job that has called ``retry`` in this process.
retrying: dict[str, tuple[Ledger, str]] = {}


class Unsent(logging.Handler):
    """Writes into the ledger that a run's retry did not reach the server. The retry is sent after
    the body has ended, so the body cannot know; the package's warning is what tells a user."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "could not publish its retry" in text:
            for task_id, (own, attempt) in list(retrying.items()):
                if f"[{task_id}]" in text:
                    own.gave_up(attempt, "rejected")


logging.getLogger("celery_superfetch.app.steps").addHandler(Unsent())


@app.task(name="soak.again", bind=True, shared=False, max_retries=1)
def again(self: Any, job: str) -> None:
    """Retries once; each of the two is a job of its own in the ledger."""
    own, attempt = book(self), f"{job}#{self.request.retries}"
    own.started(attempt)
    if not self.request.retries:
        retrying[self.request.id] = own, attempt
        try:
            self.retry(countdown=0.2)
        except BaseException as exc:  # one that could not be sent is no end
            own.gave_up(attempt, "retried" if isinstance(exc, Retry) else "rejected")
            raise
    own.finished(attempt)


@app.task(name="soak.refused", bind=True, shared=False)
def refused(self: Any, job: str) -> None:
    """Rejected with requeue the first time."""
    own = book(self)
    own.started(job)
    if own.first(job):
        own.gave_up(job, "rejected")
        raise Reject("not now", requeue=True)
    own.finished(job)
