"""The shop, with tasks that end in ways of which Celery's MainProcess makes something else."""

from __future__ import annotations

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
