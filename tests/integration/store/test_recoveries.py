"""Recovering: back to the front, in the old order, and counted."""

from __future__ import annotations

import threading

import pytest

from celery_superfetch.model.job import Counters, digest
from celery_superfetch.model.strikes import Blame
from celery_superfetch.store.private_lists import STEPS
from support.servers.commands import blocked
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.orphans import reaped, recover

JOB = payload("1")


def test_an_orphan_goes_back_to_the_front_and_is_counted(bench):
    owner = reaped(bench, JOB)
    bench.push("mail", b"backlog")
    assert recover(bench, owner, [JOB]) == [b"ok"]
    assert bench.queue() == [JOB, b"backlog"]
    assert bench.private(owner) == []
    counters = bench.counters(JOB)
    assert (counters.strikes, counters.recoveries) == (1, 1)
    [entry] = counters.history
    assert (entry["owner"], entry["reason"], entry["strike"]) == (owner.owner, "gone", "exact")
    assert abs(entry["at"] * 1000 - bench.database.server_time()) < 5000
    assert bench.stat("recovered") == 1


def test_an_app_that_forgets_sooner_lets_no_other_forget(bench, client):
    """A claim looks for what is counted of a job only while a flag is there, and apps share that:
    the next link of a chain was handed on twice."""
    sooner, flag = Bench(client, strike_window=60.0), bench.database.keys.has_history
    owner = bench.owner()
    bench.requeue(*bench.give(owner, "mail", [JOB]))
    longer = client.ttl(flag)
    assert longer > 60
    recover(sooner, reaped(sooner, payload("2")), [payload("2")])
    [killed] = sooner.killed(payload("3"))
    assert sooner.retry(killed)
    assert sooner.requeue(*sooner.give(owner, "mail", [payload("4")]))
    assert longer - 60 < client.ttl(flag) <= longer
    client.delete(flag)
    sooner.requeue(*sooner.give(owner, "mail", [payload("5")]))
    assert 0 < client.ttl(flag) <= 60
    bench.requeue(*bench.give(owner, "mail", [payload("6")]))
    assert client.ttl(flag) > 60, "who remembers for longer is heard, too"


def test_without_a_strike_only_the_recovery_is_counted(bench):
    recover(bench, reaped(bench, JOB), [JOB], blame=Blame.NONE)
    assert (bench.counters(JOB).strikes, bench.counters(JOB).recoveries) == (0, 1)


def test_nothing_moves_while_the_owner_is_not_marked(bench):
    owner = bench.dead_owner([JOB])
    assert recover(bench, owner, [JOB]) == [b"unmarked"]
    assert bench.private(owner) == [JOB]
    assert bench.queue() == []
    assert bench.counters(JOB) == Counters()


def test_a_live_owner_may_ask_for_a_job_of_its_own(bench):
    owner = bench.dead_owner([JOB])
    assert recover(bench, owner, [JOB], marked=False) == [b"ok"]
    assert bench.queue() == [JOB]


def test_what_somebody_else_moved_is_not_moved_twice(bench):
    owner = reaped(bench, JOB)
    assert recover(bench, owner, [JOB], Counters()) == [b"ok"]
    assert recover(bench, owner, [JOB]) == [b"moved"]
    assert bench.queue() == [JOB]
    assert bench.counters(JOB).recoveries == 1


def test_where_nothing_moves_no_flag_says_that_there_are_counters(bench):
    assert recover(bench, reaped(bench), [JOB]) == [b"moved"]
    assert not bench.client.exists(bench.keys.has_history)


def test_a_decision_on_old_counters_does_not_hold(bench):
    owner = reaped(bench, JOB)
    bench.client.hset(bench.keys.history(digest(JOB)), "recoveries", 2)
    assert recover(bench, owner, [JOB], Counters()) == [b"recounted"]
    assert bench.private(owner) == [JOB]
    assert recover(bench, owner, [JOB]) == [b"ok"], "taken anew"
    assert bench.counters(JOB).recoveries == 3


def test_each_job_of_a_batch_has_its_own_outcome(bench):
    one, gone, counted = payload(1), payload("gone"), payload("counted")
    owner = reaped(bench, one, counted)
    bench.client.hset(bench.keys.history(digest(counted)), "recoveries", 1)
    outcomes = recover(bench, owner, [counted, gone, one], Counters())
    assert outcomes == [b"recounted", b"moved", b"ok"]
    assert bench.private(owner) == [counted]
    assert bench.queue() == [one]
    assert bench.stat("recovered") == 1


def test_the_old_order_is_the_new_one_for_any_number_of_jobs(bench):
    jobs = [payload(n) for n in range(250)]
    owner = reaped(bench, *jobs)
    bench.push("mail", b"backlog")
    for _ in range(3):
        batch = bench.held(owner)[:100]
        assert set(recover(bench, owner, [job.payload for job in batch])) == {b"ok"}
    assert bench.queue() == [*jobs, b"backlog"]


def test_equal_payloads_are_recovered_one_by_one(bench):
    """By their bytes they are one job that was recovered twice."""
    owner = reaped(bench, JOB, JOB)
    both = [bench.recovery(job) for job in bench.held(owner)]
    call = bench.recoveries.recover(both, 0, marked=True)
    assert bench.run(call) == [b"ok", b"recounted"], "the first of them counts for the other"
    assert (bench.private(owner), bench.queue()) == ([JOB], [JOB])
    assert recover(bench, owner, [JOB], blame=Blame.NONE) == [b"ok"]
    assert bench.queue() == [JOB, JOB]


def test_a_waiting_consumer_gets_the_oldest(bench):
    """All jobs of a batch move in one step: BLMOVE is served after the script, not during it."""
    jobs = [payload(n) for n in range(50)]
    owner = reaped(bench, *jobs)
    got: list[object] = []
    waiter = threading.Thread(
        target=lambda: got.append(bench.client.blmove("mail", "taken", 10, "RIGHT", "LEFT"))
    )
    waiter.start()
    eventually(lambda: blocked(bench.client))
    recover(bench, owner, jobs[::-1])
    waiter.join()
    assert got == [jobs[0]]


def test_counters_live_for_one_window_from_the_first_recovery(make_bench):
    bench = make_bench(strike_window=1000)
    owner = reaped(bench, JOB)
    recover(bench, owner, [JOB])
    key = bench.keys.history(digest(JOB))
    assert 990 < bench.client.ttl(key) <= 1000
    assert 990 < bench.client.ttl(bench.keys.has_history) <= 1000
    bench.client.expire(key, 100)
    bench.give(owner.owner, "mail", [JOB])
    recover(bench, owner, [JOB])
    assert 0 < bench.client.ttl(key) <= 100, "the window is not prolonged"


def test_the_history_is_bounded(bench):
    owner = reaped(bench, JOB)
    for n in range(25):
        recover(bench, owner, [JOB], reason=f"time {n}")
        bench.client.delete("mail")
        bench.give(owner.owner, "mail", [JOB])
    counters = bench.counters(JOB)
    assert counters.recoveries == 25
    assert [entry["reason"] for entry in counters.history] == [f"time {n}" for n in range(5, 25)]


def test_a_recovered_job_is_delivered_as_a_redelivered_one(bench):
    recover(bench, reaped(bench, JOB), [JOB])
    [claimed] = bench.claim(bench.owner()).jobs
    assert claimed.job.payload == JOB, "byte for byte"
    token = claimed.counters.token
    assert claimed.counters == Counters(recoveries=1, strikes=1, token=token, first_claim=token)
    assert claimed.token > claimed.counters.token > 0


def test_a_token_is_greater_than_the_one_before_whatever_the_clocks_say(bench):
    owner, later = reaped(bench, JOB), 2**52
    bench.client.hset(bench.keys.history(digest(JOB)), "token", later)
    recover(bench, owner, [JOB])
    [claimed] = bench.claim(bench.owner()).jobs
    assert claimed.counters.token > later


def test_the_expiry_of_the_queue_is_renewed(bench):
    recover(bench, reaped(bench, JOB), [JOB], expires=60_000)
    assert 0 < bench.client.pttl("mail") <= 60_000


def test_what_an_orphan_has_handed_on_is_known_to_its_next_run(bench):
    owner = reaped(bench, JOB)
    [orphan] = bench.held(owner)
    bench.client.hset(bench.lists.key_of(orphan), STEPS + orphan.claim_id, ",one")
    assert recover(bench, owner, [JOB]) == [b"ok"]
    [claimed] = bench.claim(bench.owner()).jobs
    assert claimed.counters.steps == ",one"


# -- what goes wrong half way


@pytest.mark.parametrize("strikes", [0, 1], ids=["", "on probation"])
def test_a_key_of_another_type_moves_nothing_and_counts_nothing(bench, strikes):
    """Found half way it would cost the jobs that had left their list by then."""
    other = payload(2)
    owner = reaped(bench, other, JOB)
    bench.client.set(
        bench.keys.probation("mail") if strikes else bench.keys.queue("mail"), "a text"
    )
    pair = [bench.recovery(job, Counters(strikes=strikes)) for job in bench.held(owner)]
    [reply] = bench.scripts.run_all([bench.recoveries.recover(pair, 0, marked=True)], errors=True)
    assert "WRONGTYPE" in str(reply)
    assert bench.private(owner) == [JOB, other]
    assert bench.counters(JOB) == Counters()
    assert bench.stat("recovered") == 0


def test_a_history_of_another_type_counts_as_none(bench):
    """It kept all jobs of its owner and queue where they were, in each pass."""
    other = payload(2)
    owner = reaped(bench, other, JOB)
    bench.client.set(bench.keys.history(digest(other)), "a text")
    assert recover(bench, owner, [JOB, other], Counters()) == [b"ok", b"ok"]
    assert {*bench.queue()} == {JOB, other}
    assert bench.counters(other).recoveries == bench.counters(JOB).recoveries == 1
    assert bench.stat("foreign_keys") == 1


@pytest.mark.parametrize("history", ["{broken", "7"])
def test_a_history_that_cannot_be_read_is_begun_anew(bench, history):
    owner = reaped(bench, JOB)
    bench.client.hset(bench.keys.history(digest(JOB)), "history", history)
    assert recover(bench, owner, [JOB], Counters()) == [b"ok"]
    assert len(bench.counters(JOB).history) == 1


def test_a_copy_is_not_blamed_for_the_run_that_was_blamed_already(bench):
    """Two reapers drain one owner; a read that was under way takes the job again in between."""
    owner = reaped(bench, JOB, running=[JOB])
    [ran] = bench.held(owner)
    first = bench.recovery(ran)
    assert bench.run(bench.recoveries.recover([first], 0, marked=True)) == [b"ok"]
    bench.client.blmove("mail", bench.keys.landing(owner.owner, "mail"), 1, "RIGHT", "LEFT")
    again = bench.recovery(ran)
    assert bench.run(bench.recoveries.recover([again], 0, marked=True)) == [b"moved"]
    bench.reaper().reap()
    assert bench.queue() == [JOB]
    assert (bench.counters(JOB).strikes, bench.counters(JOB).recoveries) == (1, 1)
