"""The handlers of a cold shutdown that stand before Celery's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest

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
