"""Keeps forks and this package's threads apart: if a thread holds a lock of a library at the fork,
the lock stays locked in the child for ever. No lock is held over a fork, neither this package's nor
another's: the fork hooks of others run meanwhile, and may join a thread that needs it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from time import monotonic
from typing import Any

logger = logging.getLogger(__name__)

LIMIT = 15.0  # seconds that a fork waits for one thread at most: foreign code may hang

#: Seconds that a thread of this package waits for a fork at most: a hook of others may wait for it.
FORK_LIMIT = 5.0

#: Seconds for which the pool may say that it is about to fork, unless it says so again.
INTENT = 1.0

PACKAGE = __name__.partition(".")[0]


@dataclass
class _Fork:
    """A fork that is under way, or about to be."""

    thread: int
    until: float  # until when threads of this package stay outside (monotonic s)


# Held for moments, and never over a fork. Reentrant, since a signal's handler may interrupt its
# thread where that holds it.
_changed = threading.Condition(threading.RLock())
_inside: dict[int, float] = {}  # thread -> since when it is inside (monotonic s)
_forks: list[_Fork] = []
_intent = _Fork(0, 0.0)  # of the pool
_own = threading.local()


def mark_thread() -> None:
    """Declare the calling thread one of this package's: it stays outside while another one forks,
    and so does what it logs. What a thread writes to has locks that Python does not make anew in a
    child."""
    _own.marked = True
    # Also those of modules that were imported since another thread began.
    for name, made in list(logging.Logger.manager.loggerDict.items()):
        ours = name == PACKAGE or name.startswith(f"{PACKAGE}.")
        if ours and isinstance(made, logging.Logger) and "handle" not in vars(made):
            vars(made)["handle"] = _outside_of_forks(made.handle)


def _outside_of_forks(handle: Callable[[logging.LogRecord], Any]) -> Callable[..., Any]:
    @wraps(handle)
    def handle_outside(record: logging.LogRecord) -> Any:
        if not _is_marked():
            return handle(record)
        with kept_off():
            return handle(record)

    return handle_outside


def _is_marked() -> bool:
    return getattr(_own, "marked", False)


@contextmanager
def kept_off() -> Iterator[None]:
    """Have forks wait until the block ends. A thread of this package waits for a fork that is under
    way; another one does not: a fork hook may have joined it. May be nested."""
    me = threading.get_ident()
    if me in _inside:
        yield
        return
    with _changed:
        while _is_marked() and (left := _others_fork_until(me) - monotonic()) > 0:
            _changed.wait(left)
        _inside[me] = monotonic()
    try:
        yield
    finally:
        with _changed:
            _inside.pop(me, None)
            _changed.notify_all()


def _others_fork_until(me: int) -> float:
    return max((fork.until for fork in (*_forks, _intent) if fork.thread != me), default=0.0)


def _wait_for(me: int) -> float:
    """Return for how many seconds a fork has to wait for threads inside, if they stay so long; one
    that stays for too long is not waited for any more."""
    now = monotonic()
    for thread, since in list(_inside.items()):
        if thread != me and now - since >= LIMIT:
            del _inside[thread]
            _complain_of(thread)
    return max((since + LIMIT - now for who, since in _inside.items() if who != me), default=0)


def _complain_of(thread: int) -> None:
    names = {known.ident: known.name for known in threading.enumerate()}
    logger.error(
        "Thread %s has been in foreign code for %g s (a result backend, a receiver of a signal). "
        "Forks do not wait for it any more: a child that needs a lock which it holds may hang. "
        "Look what it hangs in (py-spy dump), and give that a timeout.",
        names.get(thread, thread),
        LIMIT,
    )


def may_fork() -> bool:
    """Keep this package's threads outside for a while, and say whether the calling thread may fork
    without waiting."""
    global _intent
    me = threading.get_ident()
    with _changed:
        _intent = _Fork(me, monotonic() + INTENT)
        return _wait_for(me) <= 0


def forked() -> None:
    """End what ``may_fork`` began."""
    global _intent
    with _changed:
        _intent = _Fork(0, 0.0)
        _changed.notify_all()


def _before() -> None:
    """Wait until no other thread is inside, and keep this package's outside until there is a child.
    Nothing is locked afterwards: hooks that were registered earlier run next."""
    me = threading.get_ident()
    fork = _Fork(me, 0.0)
    with _changed:
        _forks.append(fork)  # a hook may fork, too: the latest one ends first
        while True:
            fork.until = monotonic() + FORK_LIMIT
            if (left := _wait_for(me)) <= 0:
                break
            _changed.wait(min(left, FORK_LIMIT / 2))


def _after_in_parent() -> None:
    me = threading.get_ident()
    with _changed:
        for at in reversed(range(len(_forks))):
            if _forks[at].thread == me:
                del _forks[at]
                break
        _changed.notify_all()


def _after_in_child() -> None:
    global _changed, _intent, _own
    _changed, _intent = threading.Condition(threading.RLock()), _Fork(0, 0.0)
    _own = threading.local()  # this package's threads are the parent's
    _inside.clear()
    _forks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
