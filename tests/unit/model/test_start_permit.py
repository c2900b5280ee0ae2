"""What a heartbeat is good for: for how long an owner's jobs may start."""

from __future__ import annotations

from celery_superfetch.model.start_permit import PERMIT_HEARTBEATS, StartPermit, clock


def test_what_a_heartbeat_is_good_for():
    permit = StartPermit(5)
    assert permit.deadline("me") > clock(), "where nobody tells of heartbeats, nobody reaps"
    now = clock()
    permit.renew("me", now)
    assert permit.deadline("me") == now + PERMIT_HEARTBEATS * 5
    assert permit.deadline("I of yesterday") == 0
    assert permit.holder == "me"
    permit.end()
    assert permit.deadline("me") == 0
    assert permit.holder == "me"
    permit.renew("me", clock() - PERMIT_HEARTBEATS * 5)
    assert permit.deadline("me") == 0
    assert permit.holder == "me"
