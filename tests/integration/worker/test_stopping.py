"""A worker that was told to stop is marked as stopping, whatever its threads do meanwhile."""

from __future__ import annotations

import threading

from celery_superfetch.worker.stopping import Stopper, owners_of
from support.waiting import eventually


def test_the_mark_of_a_signal_handler_stays_while_another_thread_looks_at_the_flags(started):
    """Half a second passed before the worker was marked again: it started jobs meanwhile."""
    gate = started("threads", 1)
    [stopper] = [thread for thread in threading.enumerate() if isinstance(thread, Stopper)]
    [owner] = owners_of(gate.worker)
    mark, is_cleared = stopper._mark, threading.Event()

    def mark_after_a_signal(stopping: bool) -> bool:
        if not stopping and not is_cleared.is_set():
            stopper.mark_stopping()
            mark(stopping)
            is_cleared.set()
        else:
            mark(stopping)
        return stopping

    stopper._mark = mark_after_a_signal
    assert is_cleared.wait(30)
    eventually(lambda: owner.stopping, within=0.3)
