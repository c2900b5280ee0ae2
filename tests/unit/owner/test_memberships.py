"""What a signal handler may ask at any moment."""

from __future__ import annotations

from celery_superfetch.owner import memberships


def test_a_signal_handler_that_interrupts_the_registry_gets_its_answer() -> None:
    """The interrupted code is in the same thread: to wait for it would be to wait for ever."""
    with memberships._memberships_lock:
        assert isinstance(memberships.memberships(), list)
