"""On probation: where a suspect waits, how it is claimed, and when it is none any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_superfetch.model.job import Counters, Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.strikes import Blame
from support.workers.bench import Bench, payload
from support.workers.orphans import reaped, recover

JOB = payload("1")


def test_a_suspect_waits_behind_those_that_wait_already(bench):
    """Two strikes of three: it runs alone from here on."""
    first, second, third = payload(1), payload(2), payload(3)
    bench.client.lpush(bench.keys.probation("mail"), first)
    owner = reaped(bench, second, third)
    once = Counters(strikes=1, recoveries=0)
    assert set(recover(bench, owner, [third, second], once, blame=Blame.SUSPECT)) == {b"ok"}
    assert bench.on_probation() == [first, second, third]
    assert bench.client.smembers(bench.keys.on_probation) == {b"mail"}
    assert bench.queue() == []
    assert bench.counters(second).solo_runs


def test_probation_lasts_until_the_job_is_settled(bench):
    owner = reaped(bench, JOB)
    recover(bench, owner, [JOB], Counters(strikes=1, recoveries=0), blame=Blame.SUSPECT)
    bench.client.delete(bench.keys.probation("mail"))
    # A deploy interrupts it: no strike, and it is still a suspect.
    bench.give(owner.owner, "mail", [JOB])
    assert recover(bench, owner, [JOB], blame=Blame.NONE) == [b"ok"]
    assert bench.on_probation() == [JOB]
    bench.client.delete(bench.keys.probation("mail"))
    # Its worker gives it back on purpose.
    assert bench.requeue(*bench.give(owner, "mail", [JOB])) == 1
    assert bench.on_probation() == [JOB]
    # It ends well.
    me = bench.owner()
    claimed = bench.driver.claim_suspect(me.owner, "mail")
    assert claimed is not None
    assert claimed.job == bench.driver.solo
    assert claimed.counters is not None
    assert claimed.counters.recoveries == bench.counters(JOB).recoveries > 0
    bench.driver.finish(claimed)
    bench.driver.flush()
    assert bench.driver.solo is None
    assert bench.counters(JOB) == Counters()
    assert bench.recorded(me) == []


def test_a_history_that_may_not_be_marked_stays(own):
    place = own.connection_pool.connection_kwargs
    own.execute_command("ACL", "SETUSER", "worker", "on", ">pw", "~*", "&*", "+@all", "-hsetnx")
    user = redis.Redis(port=place["port"], username="worker", password="pw")
    key = Bench(own).keys.history(digest(JOB))
    own.hset(key, "strikes", 2)
    with pytest.raises(redis.ResponseError, match=r"hsetnx|can't run this command"):
        Bench(user).lists.mark_suspect(Job("", "mail", JOB, "1:mail"))
    assert own.hgetall(key) == {b"strikes": b"2"}
    user.close()


def test_what_is_no_history_is_replaced_and_named(bench, caplog):
    key = bench.keys.history(digest(JOB))
    bench.client.set(key, "a text")
    bench.lists.mark_suspect(Job("", "mail", JOB, "1:mail"))
    assert bench.client.hgetall(key) == {b"solo_runs": b"1"}
    bench.driver.write_log()
    assert f"celery_superfetch deleted key {key}: it must hold a job's history" in caplog.text


def test_suspects_are_claimed_alone_and_one_after_the_other(bench, owner):
    first, second = payload(1), payload(2)
    bench.client.lpush(bench.keys.probation("mail"), first, second)
    bench.client.sadd(bench.keys.on_probation, "mail")
    bench.client.hset(bench.keys.history(digest(first)), "steps", ",one")

    def claim_alone(who: OwnerRecord = owner) -> list[Any]:
        return bench.run(bench.lists.claim_suspect(who.owner, "mail"))

    assert claim_alone(bench.owner(register=False)) == [b"unregistered"]
    bench.client.set(bench.keys.private(owner.owner), "a text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        claim_alone()
    bench.client.delete(bench.keys.private(owner.owner))
    assert bench.on_probation() == [first, second], "nobody has got one so far"
    for raw, left in ((first, {b"mail"}), (second, set())):
        ok, claimed, _ = claim_alone()
        assert (ok, claimed) == (b"ok", raw)
        assert bench.client.smembers(bench.keys.on_probation) == left
        note = f"s{bench.held(owner)[0].claim_id}"
        assert bench.client.hexists(bench.keys.private(owner.owner), note) == (raw == first)
    bench.client.sadd(bench.keys.on_probation, "mail")  # a purge, say
    assert claim_alone() == [b"none"]
    assert bench.client.smembers(bench.keys.on_probation) == set()


def test_where_it_may_not_run_alone_it_is_no_suspect_any_more(bench):
    """Its own app may have no probation, where another's had put it there."""
    owner = reaped(bench, JOB)
    bench.client.hset(bench.keys.history(digest(JOB)), "solo_runs", 1)
    [orphan] = bench.held(owner)
    freed = replace(bench.recovery(orphan, Counters()), solo_runs=0)
    assert bench.run(bench.recoveries.recover([freed], 0, marked=True)) == [b"ok"]
    assert bench.queue() == [JOB]
    assert not bench.client.hexists(bench.keys.history(digest(JOB)), "solo_runs")
