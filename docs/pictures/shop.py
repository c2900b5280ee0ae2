"""The shop in the pictures: long jobs, and one that kills its process."""

from __future__ import annotations

import os
import signal
import time

from celery import Celery

import celery_superfetch

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["RESULT_URL"])
app.conf.worker_prefetch_multiplier = 2
celery_superfetch.install(app)


@app.task
def charge(order: int) -> None:
    time.sleep(600)


@app.task
def remind(customer: int) -> None:
    """Published with a countdown."""


@app.task(queue="mail")
def send(customer: int) -> None:
    """Waits: no worker consumes its queue."""


@app.task
def scan(upload: int) -> None:
    """Kill the process, as the OOM killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
