"""Exceptions that cannot be formatted, pickled or unpickled, as some libraries raise them.

The tasks of a storm raise them (jobs of kind "odd"). None may cost a slot, a worker or a job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, TimeLimitExceeded


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class NothingFormats(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")

    __repr__ = __str__


class ReprRaises(MemoryError):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class HoldsALock(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())


class NeedsTwo(Exception):
    """An exception that can be pickled, and cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


class ExcRaises(Exception):
    """An exception whose attribute ``exc`` raises: Celery's own wrappers have one of that name."""

    @property
    def exc(self) -> Any:
        raise RuntimeError("no exc")


class HoldsAnExit(Exception):
    exc = SystemExit(1)


FAILS = ("FAILURE",)
#: States of a job that is rejected or ignored. It has no result, but with some pools Celery stores
#: a failure for it.
FORGOTTEN = ("PENDING", "FAILURE")

#: Name -> a function that makes the exception, and the states that the result may have afterwards.
ODD: dict[str, tuple[Callable[[], BaseException], tuple[str, ...]]] = {
    "str raises": (StrRaises, FAILS),
    "nothing formats": (NothingFormats, FAILS),
    "repr of no memory raises": (ReprRaises, FAILS),
    "cannot be pickled": (HoldsALock, FAILS),
    "cannot be unpickled": (lambda: NeedsTwo("one", "two"), FAILS),
    "bool raises": (NoTruth, FAILS),
    "exc raises": (ExcRaises, FAILS),
    "exc is an exit": (HoldsAnExit, FAILS),
    "time limit without arguments": (TimeLimitExceeded, FAILS),
    "rejected, cannot be pickled": (lambda: Reject(HoldsALock()), FORGOTTEN),
    "rejected, cannot be unpickled": (lambda: Reject(NeedsTwo("one", "two")), FORGOTTEN),
    "ignored, cannot be pickled": (lambda: Ignore(HoldsALock()), FORGOTTEN),
    "ignored, cannot be unpickled": (lambda: Ignore(NeedsTwo("one", "two")), FORGOTTEN),
}
