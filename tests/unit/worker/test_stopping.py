"""The handlers of a cold shutdown that stand before Celery's."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery
from celery.concurrency.thread import TaskPool

from celery_superfetch.worker.pool_adapter import ThreadAdapter
from celery_superfetch.worker.stopping import Stopper, wrap_handlers


class Shy(Stopper):
    """As a thread is under gevent, whose repr waits for a lock."""

    def __init__(self) -> None:
        super().__init__(None)

    def __repr__(self) -> str:
        raise AssertionError("somebody looked")


@pytest.fixture
def cold() -> Iterator[None]:
    """A handler as Celery installs it."""

    def worker_Cold(number: int, frame: Any) -> None:
        raise AssertionError("not called")

    before = signal.signal(signal.SIGQUIT, worker_Cold)
    yield
    signal.signal(signal.SIGQUIT, before)


@pytest.mark.usefixtures("cold")
def test_who_looks_at_a_handler_does_not_look_at_the_stopper():
    """Python does, in each handler that asks for another's; a gevent worker stood still."""
    celerys = signal.getsignal(signal.SIGQUIT)
    wrap_handlers(Shy())
    ours = cast("Any", signal.getsignal(signal.SIGQUIT))
    assert ours is not celerys
    assert callable(ours)


def test_a_pool_of_threads_is_not_stopped_by_a_signal_while_it_is_given_a_job():
    """The handler would wait for ever for the lock that its own thread has in ``submit()``."""
    pool, stopped = TaskPool(limit=1), []

    def worker_Cold(number: int, frame: Any) -> None:
        stopped.append(pool.executor._shutdown_lock.locked())

    before = signal.signal(signal.SIGQUIT, worker_Cold)
    try:
        gate = SimpleNamespace(inline=False, adapter=ThreadAdapter(pool))
        app = Celery(set_as_current=False)
        wrap_handlers(Stopper(SimpleNamespace(pool=pool, app=app, superfetch_gate=gate)))
        with pool.executor._shutdown_lock:  # as ``submit()`` has it while a new thread comes up
            signal.raise_signal(signal.SIGQUIT)
            assert not stopped
        end = time.monotonic() + 30
        while not stopped and time.monotonic() < end:
            time.sleep(0.01)
        assert stopped == [False]
    finally:
        signal.signal(signal.SIGQUIT, before)
        pool.executor.shutdown()
