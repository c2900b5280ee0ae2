"""A job begins in time, or says that it has not begun."""

from __future__ import annotations

from time import monotonic

from celery_superfetch.worker import start


def test_the_process_that_runs_it_looks_at_its_clock() -> None:
    """B. It asks nobody: past the time it says so, and has not begun."""
    ran: list[str] = []
    assert start.start(monotonic() + 60, ran.append, "in time") is None
    failed, told, _ = start.start(monotonic(), ran.append, "too late")
    assert ran == ["in time"]
    assert failed == 1
    assert isinstance(getattr(told.exception, "exc", told.exception), start.NotStarted)
