"""A task that waits for another's result, and one that loses its own processes at first."""

from __future__ import annotations

import os
import signal

from celery.result import allow_join_result

from support.apps.shop import app, ledger

PATIENCE = 100.0  # seconds for which a parent waits for its child


@app.task(name="families.parent", shared=False)
def parent(job: str, losses: int) -> str:
    """Send a child that loses so many processes, and wait for its result."""
    book = ledger()
    book.started(job)
    result = app.tasks["families.child"].delay(f"{job}-child", losses)
    with allow_join_result():
        found = result.get(timeout=PATIENCE)
    book.finished(job)
    return str(found)


@app.task(name="families.child", shared=False)
def child(job: str, losses: int) -> str:
    """End the process that runs this, as a segfault does, in the first so many runs."""
    book = ledger()
    book.started(job)
    if len(book.starts()[job]) <= losses:
        os.kill(os.getpid(), signal.SIGKILL)
    book.finished(job)
    return job
