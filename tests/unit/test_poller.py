"""The doorbell that makes a loop come back at once, rung by several threads."""

from __future__ import annotations

import select
import sys
import threading
from time import monotonic

from celery_superfetch.poller import Poller

SECONDS = 1.0


def test_a_doorbell_that_is_rung_while_it_is_answered_can_be_rung_again() -> None:
    """One that could not would leave what is claimed undelivered, for ever."""
    poller = Poller()
    poller._turn()  # the loop is this thread
    poller.ring()
    assert poller._doorbell is not None
    bell = poller._doorbell[0]
    over = threading.Event()

    def neighbour() -> None:  # a pool's thread, whose jobs end
        while not over.is_set():
            poller.wake()

    threads = [threading.Thread(target=neighbour) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        until, heard = monotonic() + SECONDS, True
        while heard and monotonic() < until:
            heard = bool(select.select([bell], [], [], 5)[0])
            if heard:
                poller._answer()
    finally:
        sys.setswitchinterval(interval)
        over.set()
        for thread in threads:
            thread.join()
        poller.close()
    assert heard, "it is rung all the time, and nobody hears it any more"
