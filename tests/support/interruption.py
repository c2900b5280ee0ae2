"""An exception in the middle of a call, as a signal handler or ``gevent.Timeout`` raises it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Late(BaseException):
    """No ``Exception``, as ``gevent.Timeout`` is none."""


@contextmanager
def interrupted(after: float = 0.3) -> Iterator[None]:
    """Raise ``Late`` in the block, in this thread, after some seconds; the block has to take
    longer."""

    def interrupt(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        with pytest.raises(Late):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
