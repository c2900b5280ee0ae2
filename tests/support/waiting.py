"""The one place in the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    fn: Callable[[], T], within: float = 30.0, every: float = 0.02, message: str = ""
) -> T:
    """Return the first truthy value of `fn`, or fail and say what it gave last.

    An exception counts as "not yet": asserts may be used inside `fn`, and a server that is
    just restarting may refuse connections.
    """
    deadline = time.monotonic() + within
    while True:
        value: T | None = None
        error: Exception | None = None
        try:
            value = fn()
        except Exception as exc:
            error = exc
        if value:
            return value
        if time.monotonic() >= deadline:
            last = f"last raised {error!r}" if error else f"last value {value!r}"
            what = message or getattr(fn, "__name__", "condition")
            raise AssertionError(f"not within {within:g} s: {what} ({last})") from error
        time.sleep(every)


def always(fn: Callable[[], object], during: float, every: float = 0.05, message: str = "") -> None:
    """Fail as soon as `fn` is falsy; for "this must *not* happen" within a window."""
    deadline = time.monotonic() + during
    while time.monotonic() < deadline:
        value = fn()
        if not value:
            raise AssertionError(f"did not hold: {message or fn!r} (value {value!r})")
        time.sleep(every)
