"""Keeps forks and this package's threads apart.

If a thread holds a lock of a library (its log, a result backend) at the moment of a fork, the lock
stays locked in the child for ever, and the child hangs. So the threads of this package run foreign
code (user code and libraries) in a block ``with kept_off()``: forks are kept off meanwhile. A
thread in such a block is *inside*. A fork waits until no thread is inside, and these threads wait
outside while a fork is under way. All waits are bounded: foreign code may hang.

Each fork of the process calls ``_before`` and one of the functions after it. Threads of this
package call ``mark_thread`` when they start. The worker's event loop calls ``may_fork`` and
``forked`` around the forks of a prefork pool (``worker/prefork.py``). All of it is in memory: it
ends with the process, and a forked child begins without it.

This file holds no lock over a fork: fork hooks of other libraries run meanwhile, and may join a
thread that needs the lock.
"""

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

from .log_text import one_line_each

logger = one_line_each(logging.getLogger(__name__))

FORK_WAIT_MAX_S = 15.0  # s that a fork waits for one thread at most

#: Seconds that a thread of this package waits at most while the other fork hooks and the fork
#: itself run: a hook of another library may wait for the thread. Before that, the fork may have
#: waited ``FORK_WAIT_MAX_S`` for another thread that is inside, and this one as long.
THREAD_WAIT_MAX_S = 5.0

#: Seconds for which threads stay outside after ``may_fork`` was called last.
INTENT_S = 1.0

PACKAGE = __name__.partition(".")[0]


@dataclass
class _Fork:
    """A fork that is under way, or about to be."""

    thread: int  # the thread that forks
    until: float  # monotonic s; until then threads of this package stay outside


# Never held over a fork, and only for moments, except while a thread that hangs is logged.
# Reentrant, since a signal handler may interrupt a thread that holds it.
_changed = threading.Condition(threading.RLock())
_inside: dict[int, float] = {}  # thread -> since when it is inside (monotonic s)
_forks: list[_Fork] = []
_intent = _Fork(0, 0.0)  # the fork that the pool plans (``may_fork``)
_thread_mark = threading.local()


def mark_thread() -> None:
    """Declare the calling thread one of this package's: it stays outside while another thread
    forks. Also wrap ``handle`` of all loggers of this package, so that the thread's log lines are
    written inside ``kept_off``: the stream that a handler writes to has locks that Python does not
    make new in a child.
    """
    _thread_mark.marked = True
    # Repeated at each call: modules that were imported after the last call have made new loggers.
    for name, made in list(logging.Logger.manager.loggerDict.items()):
        is_of_package = name == PACKAGE or name.startswith(f"{PACKAGE}.")
        if is_of_package and isinstance(made, logging.Logger) and "handle" not in vars(made):
            vars(made)["handle"] = _outside_of_forks(made.handle)


def _outside_of_forks(handle: Callable[[logging.LogRecord], Any]) -> Callable[..., Any]:
    """Wrap a logger's ``handle``: marked threads write inside ``kept_off``, others as before."""

    @wraps(handle)
    def handle_outside(record: logging.LogRecord) -> Any:
        if not _is_marked():
            return handle(record)
        with kept_off():
            return handle(record)

    return handle_outside


def _is_marked() -> bool:
    return getattr(_thread_mark, "marked", False)


@contextmanager
def kept_off() -> Iterator[None]:
    """Make forks wait until the block ends. A thread of this package (``mark_thread``) first waits
    for a fork that is under way. Another thread does not: it may be one that a library's fork hook
    joins at this moment, and then both would wait. May be nested."""
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
    """Return until when (monotonic s) a thread stays outside for the forks of other threads."""
    return max((fork.until for fork in (*_forks, _intent) if fork.thread != me), default=0.0)


def _wait_for(me: int) -> float:
    """Return how many seconds a fork by thread ``me`` waits at most for threads that are inside.
    Drop, with an error in the log, a thread that has been inside for ``FORK_WAIT_MAX_S``."""
    now = monotonic()
    for thread, since in list(_inside.items()):
        if thread != me and now - since >= FORK_WAIT_MAX_S:
            del _inside[thread]
            _log_stuck(thread)
    return max(
        (since + FORK_WAIT_MAX_S - now for who, since in _inside.items() if who != me), default=0
    )


def _log_stuck(thread: int) -> None:
    names = {known.ident: known.name for known in threading.enumerate()}
    logger.error(
        "Thread %s has been in code of the app or of a library for %g s (a result backend, a "
        "signal receiver). New processes are forked without waiting for it, and may hang on a lock "
        "that it holds. See where it hangs (py-spy dump --pid %d), and set a timeout there.",
        names.get(thread, thread),
        FORK_WAIT_MAX_S,
        os.getpid(),
    )


def may_fork() -> bool:
    """Announce that the calling thread is about to fork: this package's threads stay outside for
    ``INTENT_S``. Return whether a fork would not have to wait now, since no thread is inside.
    ``worker.prefork.postpone_forks`` calls this in the worker's event loop before it replaces a
    lost pool process; if it returns False, it is called again a moment later."""
    global _intent
    me = threading.get_ident()
    with _changed:
        _intent = _Fork(me, monotonic() + INTENT_S)
        return _wait_for(me) <= 0


def forked() -> None:
    """Withdraw the announcement of ``may_fork``: the fork is done, or failed."""
    global _intent
    with _changed:
        _intent = _Fork(0, 0.0)
        _changed.notify_all()


def _before() -> None:
    """Wait until no other thread is inside, and keep this package's threads outside until the child
    exists. Runs in each fork of the process. No lock is held when it returns: hooks that were
    registered earlier run next."""
    me = threading.get_ident()
    fork = _Fork(me, 0.0)
    with _changed:
        _forks.append(fork)  # a fork hook may fork as well: nested forks end in reverse order
        while True:
            fork.until = monotonic() + THREAD_WAIT_MAX_S
            if (left := _wait_for(me)) <= 0:
                break
            _changed.wait(min(left, THREAD_WAIT_MAX_S / 2))


def _after_in_parent() -> None:
    me = threading.get_ident()
    with _changed:
        for at in reversed(range(len(_forks))):
            if _forks[at].thread == me:
                del _forks[at]
                break
        _changed.notify_all()


def _after_in_child() -> None:
    global _changed, _intent, _thread_mark
    _changed, _intent = threading.Condition(threading.RLock()), _Fork(0, 0.0)
    _thread_mark = threading.local()  # the threads that were marked exist in the parent alone
    _inside.clear()
    _forks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
