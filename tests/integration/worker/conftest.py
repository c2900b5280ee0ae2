from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.worker import state

from celery_superfetch.worker.gate import Gate
from support.servers.ledger import Ledger
from support.waiting import eventually


@pytest.fixture
def workers(ledger: Ledger) -> Iterator[ExitStack]:
    """Ends those that were started."""
    with ExitStack() as stack:
        yield stack
        ledger.release()
    state.revoked.clear()


@pytest.fixture
def started(make_app: Callable[..., Celery], workers: ExitStack, url: str) -> Callable[..., Gate]:
    """`started("threads", 1, task, ...)`: the gate of a worker that ends with the test."""

    def start(pool: str = "threads", concurrency: int = 1, *tasks: Callable[..., Any]) -> Gate:
        app = make_app(result_url=url, conf={"worker_hijack_root_logger": False})
        for task in tasks:
            app.task(name=task.__name__, shared=False)(task)
        options = {"pool": pool, "loglevel": "INFO", "perform_ping_check": False}
        gate = workers.enter_context(start_worker(app, concurrency, **options)).superfetch_gate
        eventually(lambda: gate.tick_count(), message="its loop turns")
        return gate

    return start
