"""The shop, with tasks that make Celery apps of their own, as libraries and lazy imports do."""

from __future__ import annotations

import time

from celery import Celery, current_app

from support.apps.shop import app, ledger


@app.task(name="shop.build", shared=False)
def build(job: str, seconds: float = 0.0) -> str:
    """Leaves another app behind as the current one of its process; its broker is nowhere."""
    book = ledger()
    book.started(job)
    other = Celery("other", broker="redis://127.0.0.1:1/0")
    other.set_current()
    other.set_default()
    assert current_app.main == "other"
    time.sleep(seconds)
    book.finished(job)
    return job
