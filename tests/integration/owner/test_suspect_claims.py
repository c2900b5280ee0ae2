"""The solo window: how long a suspect keeps other jobs, or other suspects, from its process."""

from __future__ import annotations

import pytest

from celery_superfetch.model.job import digest
from support.waiting import eventually
from support.workers.bench import Bench, payload

FIRST, SECOND = payload("first"), payload("second")
#: Seconds of a solo window: not over while a test looks, or over soon.
LONG, SHORT = 60.0, 0.05


@pytest.fixture(autouse=True)
def suspects(bench: Bench) -> None:
    """Two suspects wait. A quiesce was in vain for both, so they may run alongside others, too."""
    bench.client.lpush(bench.keys.probation("mail"), FIRST, SECOND)
    bench.client.sadd(bench.keys.on_probation, "mail")
    for job in (FIRST, SECOND):
        bench.client.hset(bench.keys.history(digest(job)), "quiesced", 1)


def test_a_solo_run_ends_with_its_window_and_not_before(bench, owner):
    first = bench.driver.claim_suspect(owner.owner, "mail", LONG)
    assert bench.driver.end_solo_if_over() is None
    assert bench.driver.solo == first.job
    assert bench.driver.has_waiting_note(first.job) is False, "it counts as running"
    bench.driver.finish(first)
    second = bench.driver.claim_suspect(owner.owner, "mail", SHORT)
    assert eventually(bench.driver.end_solo_if_over) == second.job
    assert bench.driver.solo is None
    assert second.job in bench.driver, "it may still run, only not alone any more"


def test_no_second_suspect_runs_alongside_in_the_window_of_the_first(bench, owner):
    assert bench.driver.claim_suspect_alongside(owner.owner, "mail", LONG)
    assert bench.driver.claim_suspect_alongside(owner.owner, "mail") is None


def test_a_second_suspect_runs_alongside_once_the_window_of_the_first_is_over(bench, owner):
    first = bench.driver.claim_suspect_alongside(owner.owner, "mail", SHORT)
    second = eventually(lambda: bench.driver.claim_suspect_alongside(owner.owner, "mail"))
    assert second.job.payload == SECOND
    assert first.job in bench.driver, "it runs still"


def test_a_suspect_that_has_ended_keeps_no_other_one_from_running_alongside(bench, owner):
    """Its ack is sent with the next command at the latest, which is this claim."""
    first = bench.driver.claim_suspect_alongside(owner.owner, "mail", LONG)
    bench.driver.finish(first)
    second = bench.driver.claim_suspect_alongside(owner.owner, "mail", LONG)
    assert second.job.payload == SECOND


@pytest.mark.parametrize("claim", ["claim_suspect", "claim_suspect_alongside"])
def test_a_list_without_suspects_is_not_asked_again(bench, owner, claim):
    bench.client.delete(bench.keys.probation("mail"))
    bench.driver.hear_of_suspects(["mail", "other"])
    assert getattr(bench.driver, claim)(owner.owner, "mail") is None
    assert bench.driver.suspect_lists == {"other"}
