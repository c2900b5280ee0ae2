"""The shop, with tasks that end in ways of which Celery's MainProcess makes something else."""

from __future__ import annotations

import os
import signal
import time

from celery.exceptions import Reject

from support.apps.shop import app, ledger


@app.task(name="ends.memory_error", shared=False)
def memory_error(job: str) -> None:
    """Python's own, of one allocation too large."""
    ledger().started(job)
    raise MemoryError("unable to allocate")


@app.task(name="ends.reject", shared=False)
def reject(job: str) -> None:
    ledger().started(job)
    raise Reject("not wanted", requeue=False)


@app.task(name="ends.outlive", shared=False)
def outlive(job: str) -> None:
    """What a library does that handles TERM in its own way: its process goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    book = ledger()
    book.started(job)
    while not book.released(job):
        time.sleep(0.05)
    book.finished(job)


@app.task(name="ends.slowly", shared=False)
def slowly(job: str) -> None:
    """Its process closes all that it has a moment before it is dead, as each does."""
    ledger().started(job)
    os.closerange(3, 1024)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
