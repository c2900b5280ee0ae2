"""Exceptions that cannot be formatted, pickled or unpickled, as people's libraries have them."""

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
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(threading.Lock())


class NeedsTwo(Exception):
    """Is pickled, and cannot be unpickled."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")


class ExcRaises(Exception):
    """Celery wraps exceptions in objects with an attribute of this name."""

    @property
    def exc(self) -> Any:
        raise RuntimeError("no exc")


class HoldsAnExit(Exception):
    exc = SystemExit(1)


FAILS = ("FAILURE",)
#: A job that is rejected or ignored has no result; some pools of Celery store a failure for it.
FORGOTTEN = ("PENDING", "FAILURE")

#: Name -> what a task raises, and the states in which its result may be afterwards.
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
