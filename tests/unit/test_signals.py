"""Signals bring one value each, frozen and typed."""

from __future__ import annotations

import pytest
from celery.utils.dispatch import Signal
from redis.exceptions import OutOfMemoryError

from celery_superfetch import signals
from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.foreign import describe
from celery_superfetch.model.strikes import Recovery

PAYLOADS = {
    "job_recovering": ("recovery", Recovery),
    "job_recovered": ("recovery", Recovery),
    "job_killed": ("job", DeadJob),
    "owner_reaped": ("reaped", signals.ReapedOwner),
    "ownership_lost": ("lost", signals.LostJob),
}


def test_the_table_names_every_signal():
    found = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert found == set(PAYLOADS)


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_signal_brings_one_frozen_value(name):
    argument, payload = PAYLOADS[name]
    assert getattr(signals, name).providing_args == {argument}
    frozen = getattr(payload, "__dataclass_params__", None)
    assert frozen.frozen if frozen else issubclass(payload, tuple)


@pytest.mark.parametrize("error", [ValueError("a"), OutOfMemoryError("full"), OSError("none")])
@pytest.mark.parametrize("name", PAYLOADS)
def test_an_error_of_a_receiver_is_logged_and_raised_no_further(name, error, caplog):
    """Also one of the receiver's own Redis client: raised, it would count as one of the broker."""
    signal, sender = getattr(signals, name), object()

    def fail(**_: object) -> None:
        raise error

    signal.connect(fail, sender=sender)
    assert signal.send(sender=sender) == [(fail, error)]
    [line] = caplog.messages
    assert f"{fail!r} of signal {name} raised {describe(error)}" in line
