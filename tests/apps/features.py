"""Celery's features as tasks of the shop: retries, rejects, time limits, rates, batches."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from apps.build import build_app
from harness.ledger import Ledger

if os.environ.get("FEATURES_WITHOUT_PULSE"):  # the control: what gevent does to the heart
    from celery_superfetch import membership

    membership.threads_are_greenlets = lambda: False


def add_features(app: Celery, ledger_url: str) -> None:
    """Register the tasks as `features.<name>`."""

    def ledger() -> Ledger:
        return Ledger(ledger_url)

    @app.task(name="features.burn", shared=False)
    def burn(job: str, until: str) -> str:
        """Compute without a pause, and without anything that gevent patches, until a file is."""
        book = ledger()
        book.started(job)
        end = Path(until)
        while not end.exists():
            sum(range(1000))
        book.finished(job)
        return job


app = build_app(os.environ)
add_features(app, os.environ["LEDGER_URL"])
