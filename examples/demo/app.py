"""The demo's Celery app. What makes it reliable is one line: `celery_superfetch.install(app)`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from typing import Any

import redis
from celery import Celery

import celery_superfetch

URL = os.environ.get("DEMO_URL", "redis://localhost:6379/0")
STOCK = os.environ.get("DEMO_STOCK") == "1"
QUEUE = "superfetch-demo"

#: Put before every key, results and queues included: in a server that others use, too, the
#: demo meets no key but its own, and can take all of them away at its end.
PREFIX = "superfetch-demo:"

#: What really ran, written down by the tasks themselves and by nobody else.
LEDGER = f"{PREFIX}ledger"

app = Celery("demo", broker=URL, backend=URL)
app.conf.update(
    task_default_queue=QUEUE,
    broker_transport_options={"global_keyprefix": PREFIX},
    result_backend_transport_options={"global_keyprefix": PREFIX},
    broker_connection_retry_on_startup=False,  # a wrong URL is to be told at once
)
if STOCK:
    # Stock Celery at its safest: without these a job is acked before it runs.
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
else:
    celery_superfetch.install(app)


@app.task(ignore_result=True)
def work(n: int, seconds: float) -> None:
    """A job that takes its time, and writes down when it starts and when it has finished."""
    run = _started(f"work-{n}", seconds)
    time.sleep(seconds)
    _write(run=run)


@app.task
def poison() -> None:
    """What a segmentation fault or the OOM killer does: end the process that runs the job."""
    _started("poison", 0)
    os.kill(os.getpid(), signal.SIGKILL)


def _started(job: str, seconds: float) -> str:
    """Note the start of a run; its name, for the note of its end."""
    run = secrets.token_hex(6)
    _write(run=run, job=job, worker=os.getppid(), pool_process=os.getpid(), seconds=seconds)
    return run


def _write(**about: Any) -> None:
    with redis.Redis.from_url(URL) as client:
        client.rpush(LEDGER, json.dumps({"at": time.time(), **about}))
