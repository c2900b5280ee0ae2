"""The shop, with tasks that end in ways of which Celery's MainProcess makes something else."""

from __future__ import annotations

import os

from celery.exceptions import Reject

from support.apps.build import build_app
from support.servers.ledger import Ledger

app = build_app(os.environ)


@app.task(name="ends.memory_error", shared=False)
def memory_error(job: str) -> None:
    """Python's own, of one allocation too large."""
    Ledger(os.environ["LEDGER_URL"]).started(job)
    raise MemoryError("unable to allocate")


@app.task(name="ends.reject", shared=False)
def reject(job: str) -> None:
    Ledger(os.environ["LEDGER_URL"]).started(job)
    raise Reject("not wanted", requeue=False)
