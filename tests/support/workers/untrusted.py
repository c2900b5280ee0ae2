"""What tasks raise that cannot be printed, asked, pickled or unpickled: each kind by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject

from celery_superfetch.worker.pool_adapter import NotStarted

IMPORTED_BY = os.getpid()  # the MainProcess, also where its pool's processes look


class Unprintable(Exception):
    """What a ``str`` or ``repr`` of a library does that reads a field which is not there."""

    def __str__(self) -> str:
        raise ValueError("this exception cannot be printed")

    __repr__ = __str__


class Shy(Exception):
    """Printed as what is no text."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]

    __repr__ = __str__


class Endless(Exception):
    """Printed in many lines, and much too long."""

    def __str__(self) -> str:
        return "line\n\x1b[31mred\x00\ud800" * 200_000


class Quitter(Exception):
    """Whoever prints it is told to exit."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Interrupter(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class NoMemory(MemoryError):
    def __repr__(self) -> str:
        raise ValueError("no memory to print it")

    __str__ = __repr__


class LostUnprintably(WorkerLostError):
    def __str__(self) -> str:
        raise ValueError("lost without a word")

    __repr__ = __str__


class RaisingExc(Exception):
    """Has the attribute that billiard's own wrapper has, and it raises."""

    @property
    def exc(self) -> NoReturn:
        raise ValueError("nothing to see here")


class HoldingExit(Exception):
    """As requests' and other wrappers do, it holds what it wraps."""

    def __init__(self) -> None:
        super().__init__("holds an exit")
        self.exc = SystemExit(1)


class NoTruth(Exception):
    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


class Impostor(Exception):
    """Says that it is of another class, and one that raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise ValueError("no class")


class NotReduced(Exception):
    def __reduce__(self) -> NoReturn:
        raise ValueError("cannot be pickled")


def refuse(*_: Any) -> NoReturn:
    raise ValueError("cannot be unpickled")


class OneWay:
    """Pickled without a complaint, and never unpickled."""

    def __reduce__(self) -> Any:
        return refuse, ()


class OneWayError(Exception):
    def __init__(self, a: int, b: int) -> None:  # its args have one
        super().__init__(a + b)


def restore_in_child(*_: Any) -> Any:
    if os.getpid() == IMPORTED_BY:
        raise ValueError("known to the pool's process alone")
    return OnlyInChild()


class OnlyInChild(Exception):
    """Unpickled in the pool's process, which tries that, and not in the worker's."""

    def __reduce__(self) -> Any:
        return restore_in_child, ()


class Unreadable:
    def __repr__(self) -> str:
        raise ValueError("this argument cannot be printed")


def circular() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    first.__context__ = first
    return first


class Forged(Exception):
    """Says that it is what a task raises to have its message requeued."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return Reject


class NoNotes(Exception):
    """Its traceback cannot be formatted."""

    @property
    def __notes__(self) -> NoReturn:
        raise SystemExit(4)


FAILS, IGNORED, REJECTED, EXITS = "FAILURE", "PENDING", "FAILURE or PENDING", "a strike"

#: What tasks raise, and what becomes of their jobs. Of what a task rejects, Celery has a result
#: since 5.7. What exits ends its process, also where it was only to be printed.
RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "str raises": (Unprintable, FAILS),
    "str is no text": (Shy, FAILS),
    "str is endless": (Endless, FAILS),
    "str exits": (Quitter, EXITS),
    "str interrupts": (Interrupter, EXITS),
    "a time limit without seconds": (TimeLimitExceeded, FAILS),
    "no memory, no text": (NoMemory, FAILS),
    "lost without a text": (LostUnprintably, FAILS),
    "terminated": (Terminated, FAILS),
    "exc raises": (RaisingExc, FAILS),
    "exc is an exit": (HoldingExit, FAILS),
    "billiard's wrapper of an exit": (lambda: ExceptionWithTraceback(SystemExit(1), ""), FAILS),
    "bool raises": (NoTruth, FAILS),
    "class raises": (Impostor, FAILS),
    "class is another": (Forged, FAILS),
    "notes exit": (NoNotes, EXITS),
    "our own word": (NotStarted, IGNORED),
    "cannot be pickled": (NotReduced, FAILS),
    "cannot be made again": (lambda: OneWayError(1, 2), FAILS),
    "an argument that cannot be unpickled": (lambda: ValueError(OneWay()), FAILS),
    "unpickled in the pool's process alone": (OnlyInChild, FAILS),
    "an argument that cannot be printed": (lambda: ValueError(Unreadable()), FAILS),
    "a circle of causes": (circular, FAILS),
    "reject: str raises": (lambda: Reject(Unprintable()), REJECTED),
    "reject: cannot be pickled": (lambda: Reject(NotReduced()), REJECTED),
    "reject: cannot be unpickled": (lambda: Reject(OneWay()), REJECTED),
    "reject: requeue raises": (lambda: Reject("", requeue=NoTruth()), REJECTED),
    "ignore: str raises": (lambda: Ignore(Unprintable()), IGNORED),
    "ignore: cannot be pickled": (lambda: Ignore(NotReduced()), IGNORED),
    "ignore: cannot be unpickled": (lambda: Ignore(OneWay()), IGNORED),
    "exit: cannot be unpickled": (lambda: SystemExit(OneWay()), EXITS),
    "exit: str raises": (lambda: SystemExit(Unreadable()), EXITS),
}
