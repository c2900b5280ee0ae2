"""A property that is computed once, and that a fork in the middle of it does not lock."""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import cached_property
from typing import Any

import pytest

from celery_superfetch.model.lazy import lazy_property


def holder(descriptor: Any) -> tuple[Any, threading.Event, threading.Event]:
    began, may_end = threading.Event(), threading.Event()

    class Holder:
        slow = True

        @descriptor
        def value(self) -> list[int]:
            """A value."""
            if self.slow:
                began.set()
                may_end.wait(10)
            return [1]

    return Holder, began, may_end


def child_computes(holder: Any) -> bool:
    """Return whether a process that is forked now gets a value; it is killed where it waits."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout handles it
        signal.alarm(1)
        holder().value  # noqa: B018
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def test_it_is_computed_once_for_each_object():
    kind, _, _ = holder(lazy_property)
    kind.slow = False
    one, two = kind(), kind()
    assert one.value is one.value
    assert one.value is not two.value
    assert kind.value.__doc__ == "A value."


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_a_thread_computes_it_locks_nothing_in_the_child():
    kind, began, may_end = holder(lazy_property)
    other = threading.Thread(target=lambda: kind().value)
    other.start()
    assert began.wait(10)
    kind.slow = False
    try:
        assert child_computes(kind)
    finally:
        may_end.set()
        other.join()


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="its cached_property has no lock")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_control_a_cached_property_stays_locked_in_the_child():
    kind, began, may_end = holder(cached_property)
    other = threading.Thread(target=lambda: kind().value)
    other.start()
    assert began.wait(10)
    kind.slow = False
    try:
        assert not child_computes(kind)
    finally:
        may_end.set()
        other.join()
