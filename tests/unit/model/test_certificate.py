"""What a heartbeat is good for: for how long an owner's jobs may start."""

from __future__ import annotations

from celery_superfetch.model.certificate import HEARTBEATS, Certificate, clock


def test_what_a_heartbeat_is_good_for() -> None:
    certificate = Certificate(5)
    assert certificate.until("me") > clock(), "where nobody tells of heartbeats, nobody reaps"
    now = clock()
    certificate.heard("me", now)
    assert certificate.until("me") == now + HEARTBEATS * 5
    assert certificate.until("I of yesterday") == 0
    assert certificate.is_past("I of yesterday")
    certificate.end()
    assert certificate.until("me") == 0
    assert certificate.is_past("I of yesterday")
    certificate.heard("me", clock() - HEARTBEATS * 5)
    assert certificate.until("me") == 0
    assert not certificate.is_past("me")
