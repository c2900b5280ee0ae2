"""Who is blamed for the death of an owner, and who only waited."""

from __future__ import annotations

import pytest

from celery_superfetch.model.job import Claimed
from celery_superfetch.model.strikes import Counters
from support.workers.bench import payload


def test_a_stopping_owner_gives_no_strike(bench):
    deploy, crash = payload("deploy"), payload("crash")
    bench.dead_owner([deploy], running=[deploy], state="stopping")
    bench.dead_owner([crash], running=[crash], state="running")
    assert bench.reaper().reap().recovered == 2
    known = bench.counters(deploy)
    assert known == Counters(0, 1, known.history, stops=1, first_claim=known.first_claim)
    assert [entry["stop"] for entry in known.history] == [True]
    assert bench.counters(crash).strikes == 1


def test_who_ran_when_the_owner_died_is_blamed_and_who_only_waited_is_not(bench):
    two, three, reserved = payload(2), payload(3), payload("reserved")
    bench.dead_owner([two, three, reserved], running=[two, three])
    one = payload(1)
    bench.dead_owner([one, payload("eta")], running=[one])
    assert bench.reaper().reap().recovered == 5
    blamed = {raw: bench.counters(raw) for raw in (one, two, three, reserved, payload("eta"))}
    assert [counters.strikes for counters in blamed.values()] == [1, 1, 1, 0, 0]
    strikes = [counters.history[0]["strike"] for counters in blamed.values()]
    assert strikes == ["exact", "suspect", "suspect", "", ""]


def test_what_lands_for_a_dead_owner_has_not_run_and_is_counted_no_more(bench):
    """Its process is gone; its blocking read is served all the same, a moment later."""
    one, two = payload(1), payload(2)
    owner = bench.dead_owner([one, two], running=[one, two])
    bench.reaper().reap()
    before = [bench.counters(raw) for raw in (one, two)]
    assert [counters.strikes for counters in before] == [1, 1]
    bench.client.lmove("mail", bench.keys.landing(owner.owner, "mail"), "RIGHT", "LEFT")
    assert bench.queue() == [two]
    assert bench.reaper().reap().recovered == 1
    assert bench.queue() == [one, two]
    assert [bench.counters(raw) for raw in (one, two)] == before
    assert bench.registry.tombstones(), "and it is drained again until its time is over"


def test_the_one_that_ran_is_alone_with_it_whatever_landed_or_waited(bench):
    ran, waited, landed = payload("ran"), payload("waited"), payload("landed")
    owner = bench.dead_owner([ran, waited], running=[ran])
    bench.land(owner, "mail", landed)
    assert bench.reaper().reap().recovered == 3
    assert bench.queue() == [ran, waited, landed]
    assert bench.counters(ran).history[0]["strike"] == "exact"
    assert bench.counters(waited).strikes == 0
    assert bench.counters(landed) == Counters()


def test_of_two_copies_one_ran_and_each_is_counted(bench):
    """They share their counters, and one batch has both."""
    ran, waited = payload("ran"), payload("waited")
    owner = bench.dead_owner([ran, ran, waited, waited], running=[ran])
    report = bench.reaper().reap()
    assert (report.recovered, report.errors) == (4, 0)
    assert bench.private(owner) == []
    assert (bench.counters(ran).strikes, bench.counters(ran).recoveries) == (1, 2)
    assert (bench.counters(waited).strikes, bench.counters(waited).recoveries) == (0, 2)


@pytest.mark.parametrize("copies", [3, 60])
def test_one_death_is_one_strike_for_all_copies_of_a_message(bench, copies):
    """They share a history. Three that ran at once were on probation after one death."""
    raw, other = payload("copied"), payload("other")
    owner = bench.dead_owner([other], running=[other])
    for job in bench.give(owner, "mail", [raw] * copies):
        bench.run_one(job)
    report = bench.reaper().reap()
    assert (report.recovered, report.killed, report.errors) == (copies + 1, 0, 0)
    assert (bench.counters(raw).strikes, bench.counters(raw).recoveries) == (1, copies)
    assert bench.counters(other).strikes == 1
    waiting = [*bench.queue(), *bench.on_probation()]
    assert sorted(waiting) == sorted([other, *[raw] * copies])
    assert bool(bench.on_probation()) == (copies >= 20), "as many recoveries as anybody may have"


def test_a_copy_that_only_waited_takes_no_strike_from_the_one_that_ran(bench):
    raw = payload("copied")
    for deaths in range(1, 4):
        bench.client.delete("mail", bench.keys.probation("mail"))
        owner = bench.dead_owner([], lists=["mail"])
        _, ran, _ = bench.give(owner, "mail", [raw] * 3)
        bench.run_one(ran)
        assert bench.reaper().reap().recovered == 3
        assert bench.counters(raw).strikes == deaths
        assert [entry["strike"] for entry in bench.counters(raw).history].count("exact") == deaths


def test_what_a_frozen_owner_settles_late_does_not_leave_the_other_alone_with_the_blame(bench):
    one, two = payload(1), payload(2)
    owner = bench.dead_owner([one, two], running=[one, two])
    late = Claimed(bench.held(owner)[-1])
    assert late.job.payload == one
    assert bench.mark(owner, "silent")
    # Thawed before anybody has emptied its lists.
    assert bench.ack(owner, late)
    bench.reaper().reap()
    assert bench.counters(two).history[0]["strike"] == "suspect"


def test_a_suspect_is_never_killed_for_it(bench):
    """Whoever ran beside it: two strikes of three, and there it stays."""
    one, two = payload(1), payload(2)
    for _ in range(6):
        bench.client.delete("mail", bench.keys.probation("mail"))
        bench.dead_owner([one, two], running=[one, two])
        assert bench.reaper().reap().recovered == 2
    assert [bench.counters(raw).strikes for raw in (one, two)] == [2, 2]
    assert bench.on_probation() == [one, two]
