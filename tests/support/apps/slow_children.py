"""The shop, whose pool processes come up when a file is gone; and a task with early ack."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery.signals import worker_process_init

from support.apps.build import build_app
from support.servers.ledger import Ledger

app = build_app(os.environ)
app.conf.worker_proc_alive_timeout = 60


@worker_process_init.connect(weak=False)
def wait(**_: object) -> None:
    while Path(os.environ["NO_CHILDREN"]).exists():
        time.sleep(0.05)


@app.task(name="shop.early", shared=False, acks_late=False)
def early(job: str) -> str:
    ledger = Ledger(os.environ["LEDGER_URL"])
    ledger.started(job)
    while not ledger.released(job):
        time.sleep(0.05)
    ledger.finished(job)
    return job
