"""Keeps forks from threads of ours that may hold a lock of a library, which a child would find held
for ever: while one is ``with kept_off()``, forks wait, and that of a pool comes later."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

logger = logging.getLogger(__name__)

LIMIT = 15.0  # seconds that a fork waits for somebody at most: what is foreign may hang

# Reentrant, since a signal's handler may be where its thread is already.
_turn = threading.Condition(threading.RLock())
_inside: dict[int, float] = {}  # threads inside -> since when (monotonic s)
#: Which thread wants to fork, and until when the others stay outside (monotonic s).
_wanted = NOBODY = 0, 0.0
_writing: list[logging.Handler] = []


@contextmanager
def kept_off() -> Iterator[None]:
    """No fork while we are here; waits for one that is wanted. May be nested."""
    me = threading.get_ident()
    if me in _inside:
        yield
        return
    with _turn:
        while _wanted[0] != me and (left := _wanted[1] - monotonic()) > 0:
            _turn.wait(left)
        _inside[me] = monotonic()
    try:
        yield
    finally:
        with _turn:
            _inside.pop(me, None)
            _turn.notify_all()


def _wait_for() -> float:
    """Seconds for which a fork by this thread has to wait for others, if they stay so long."""
    me, now = threading.get_ident(), monotonic()
    for who, since in list(_inside.items()):
        if who != me and now - since >= LIMIT:
            del _inside[who]
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            logger.error(
                "Thread %s has been in foreign code for %g s (a result backend, a receiver of a "
                "signal). Forks do not wait for it any more: a child that needs a lock which it "
                "holds may hang. Look what it hangs in (py-spy dump), and give that a timeout.",
                names.get(who, who),
                LIMIT,
            )
    return max((since + LIMIT - now for who, since in _inside.items() if who != me), default=0.0)


def may_fork() -> bool:
    """Keep the others out for a while, and say whether this thread may fork without waiting."""
    global _wanted
    with _turn:
        _wanted = threading.get_ident(), monotonic() + 1.0  # unless it asks again
        return _wait_for() <= 0


def forked() -> None:
    global _wanted
    with _turn:
        _wanted = NOBODY
        _turn.notify_all()


def _before() -> None:
    """Whoever forks, and whyever: nobody else is inside from here until there is a child."""
    _turn.acquire()
    while (left := _wait_for()) > 0:
        _turn.wait(left)
    # Logs that are being written: handlers get new locks in the child, but not what they write to.
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]
        handler = reference()
        lock = getattr(handler, "lock", None)
        if lock is not None and lock.acquire(timeout=1.0):
            _writing.append(handler)


def _after_in_parent() -> None:
    while _writing:
        _writing.pop().release()
    _turn.release()


def _after_in_child() -> None:
    global _turn, _wanted
    _turn, _wanted = threading.Condition(threading.RLock()), NOBODY
    _inside.clear()
    _writing.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
