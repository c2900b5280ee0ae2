"""The shop, whose pool processes come up when a file is gone; and a task with early ack."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery.signals import worker_process_init

from support.apps.shop import app, ledger

app.conf.worker_proc_alive_timeout = 60


@worker_process_init.connect(weak=False)
def wait(**_: object) -> None:
    while Path(os.environ["NO_CHILDREN"]).exists():
        time.sleep(0.05)


@app.task(name="shop.early", shared=False, acks_late=False)
def early(job: str) -> str:
    book = ledger()
    book.started(job)
    while not book.released(job):
        time.sleep(0.05)
    book.finished(job)
    return job
