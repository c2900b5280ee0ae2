"""The doorbell of the loop: whoever rings is heard, also while another's ring is answered."""

from __future__ import annotations

import os
import select
import threading
from typing import Any

import pytest

from celery_superfetch.transport.poller import Poller


def rings(poller: Poller) -> bool:
    assert poller._doorbell is not None
    return bool(select.select([poller._doorbell[0]], [], [], 0)[0])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_ring_beside_the_loops_answer_is_not_drowned(monkeypatch, when):
    """It would leave the doorbell marked as ringing, and silent, for ever."""
    poller, read = Poller(), os.read

    def settle() -> None:
        other = threading.Thread(target=poller.wake)
        other.start()
        other.join()

    def beside(fd: int, size: int) -> Any:
        if when == "before":
            settle()
        answer = read(fd, size)
        if when == "after":
            settle()
        return answer

    poller.ring()
    monkeypatch.setattr(os, "read", beside)
    poller._answer()
    monkeypatch.undo()
    poller.ring()
    assert rings(poller)
    poller._answer()
    assert not rings(poller), "and it falls silent again"
    poller.close()


def test_two_rings_at_once_are_one():
    """Two threads may both find it silent; a byte that is left would keep the loop busy."""
    poller = Poller()
    poller.ring()
    poller._rung = False
    poller.ring()
    poller._answer()
    assert not rings(poller)
    poller.close()


def test_a_settlement_of_the_loops_own_thread_rings_nothing():
    poller = Poller()
    poller.ring()
    poller._answer()
    poller.wake()
    assert not rings(poller)
    poller.close()
    poller.wake()
