"""The decision on a recovery, and the value it is taken on."""

from __future__ import annotations

import pytest

from celery_superfetch.job import Envelope, Job, digest
from celery_superfetch.recovery import Counters, Decision, Recovery, decide

JOB = Job("web-1|7|abc", "mail", b"payload")
KNOWN = Envelope({"body": ""}, "shop.add", "id-1")


def recovery(
    envelope: Envelope = KNOWN, counters: Counters | None = None, strike: bool = True
) -> Recovery:
    return Recovery.of(
        JOB, envelope, counters or Counters(), reason="gone", app_name="shop", strike=strike
    )


@pytest.mark.parametrize(
    ("strikes", "recoveries", "decision"),
    [
        (0, 1, Decision.RECOVER),
        (1, 1, Decision.RECOVER),
        (2, 2, Decision.RECOVER),
        (3, 3, Decision.KILL),
        (4, 4, Decision.KILL),
        (0, 19, Decision.RECOVER),
        (2, 19, Decision.RECOVER),
        (0, 20, Decision.KILL),
        (0, 21, Decision.KILL),
    ],
)
def test_a_job_is_killed_at_its_limit_and_not_before(
    strikes: int, recoveries: int, decision: Decision
) -> None:
    assert decide(strikes, recoveries, strike_limit=3, recovery_limit=20) is decision


def test_a_job_that_always_crashes_runs_exactly_strike_limit_times() -> None:
    counters, runs = Counters(), 0
    while True:
        runs += 1
        crashed = recovery(counters=counters)
        if decide(crashed.strikes, crashed.recoveries, 3, 20) is Decision.KILL:
            break
        counters = Counters(crashed.strikes, crashed.recoveries)
    assert runs == 3


def test_the_counts_include_this_time() -> None:
    first = recovery()
    assert (first.strikes, first.recoveries) == (1, 1)
    later = recovery(counters=Counters(strikes=1, recoveries=4, history=({"at": 1},)))
    assert (later.strikes, later.recoveries, later.history) == (2, 5, ({"at": 1},))


def test_a_recovery_that_is_nobodys_fault_adds_no_strike() -> None:
    deploy = recovery(counters=Counters(strikes=2, recoveries=2), strike=False)
    assert (deploy.strikes, deploy.recoveries) == (2, 3)
    assert decide(deploy.strikes, deploy.recoveries, 3, 20) is Decision.RECOVER


def test_a_recovery_knows_its_job_by_name_and_by_digest() -> None:
    named = recovery()
    assert (named.task, named.task_id, named.parsed) == ("shop.add", "id-1", True)
    assert named.digest == digest(b"payload")
    assert named.title == "shop.add[id-1]"


def test_titles_of_nameless_jobs_say_what_is_known() -> None:
    assert recovery(Envelope({"body": ""})).title == f"unknown task[{digest(b'payload')}]"
    junk = recovery(Envelope())
    assert not junk.parsed
    assert junk.title == f"unparseable payload[{digest(b'payload')}]"
