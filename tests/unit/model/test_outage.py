"""An outage is in the log at its begin, now and then, and at its end."""

from __future__ import annotations

import logging

from celery_superfetch.model.outage import Outage
from support.waiting import eventually

logger = logging.getLogger("outage")


def test_an_outage_is_logged_at_its_begin_and_at_its_end(caplog):
    caplog.set_level(logging.INFO)
    outage = Outage(logger)
    outage.ended("Works")
    assert caplog.messages == []
    for _ in range(100):
        outage.failed("Fails (%s).", "why")
    assert caplog.messages == ["Fails (why)."]
    outage.ended("Works")
    outage.ended("Works")
    assert caplog.messages[1:] == ["Works again, after 0 s."]
    outage.failed("Fails (%s).", "another")
    assert caplog.messages[2:] == ["Fails (another)."], "the next outage is another one"


def test_an_outage_that_lasts_is_logged_now_and_then(caplog):
    outage = Outage(logger, interval_s=0.05)

    def lines() -> int:
        outage.failed("Fails.")
        return len(caplog.messages)

    eventually(lambda: lines() == 3)
    assert caplog.messages[1] == "Fails. This has lasted for 0 s."


def test_an_outage_without_a_failed_try_expires(caplog):
    """Its end is in no log: another process has succeeded, perhaps days ago."""
    caplog.set_level(logging.INFO)
    outage = Outage(logger, interval_s=0.0, expires_s=0.05)
    outage.failed("Fails.")
    outage.failed("Fails.")
    assert outage.lasts
    eventually(lambda: not outage.lasts)
    outage.ended("Works")
    outage.failed("Fails.")
    assert outage.lasts
    eventually(lambda: not outage.lasts)
    outage.failed("Fails.")
    assert caplog.messages == ["Fails.", "Fails. This has lasted for 0 s.", "Fails.", "Fails."]


def test_an_outage_that_expires_again_and_again_gets_no_more_lines_than_another(caplog):
    outage = Outage(logger, interval_s=60.0, expires_s=0.0)
    for _ in range(10):
        outage.failed("Fails.")
    assert caplog.messages == ["Fails."]
