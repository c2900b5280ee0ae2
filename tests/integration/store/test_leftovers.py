"""E6. What is left in Redis when all is done: for each scenario every key, with its TTL."""

from __future__ import annotations

from typing import Any

import pytest

from celery_superfetch.model.job import Claimed, Counters, Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.step import Claim
from celery_superfetch.reaper.reaper import TOMBSTONE_S
from celery_superfetch.store.owner_registry import SERVED_S, TOMBSTONE_TTL_S
from celery_superfetch.store.parked_jobs import ParkedJobs
from celery_superfetch.store.stats import DEATHS_DAYS
from support.waiting import eventually
from support.workers.bench import Bench, payload

ONE, TWO = payload("1"), payload("2")
WINDOW = 72 * 3600

#: Never expires.
FOR_EVER = -1

#: Of an owner that was reaped: what it may ask for when it thaws, and what status tells of it.
KEPT = {"record": TOMBSTONE_TTL_S, "deaths": DEATHS_DAYS * 86400}


def is_left(bench: Bench, **expected: int) -> None:
    """Fails unless what is left are these keys of ours, with about these TTLs in s. Counters for
    `status`, which stay, are not asked for."""
    names = {"record": "owner:", "counters": "history:", "tombstone": "reaped"}
    found: dict[str, Any] = {}
    served = bench.client.ttl(bench.keys.served)  # that queues had a worker; there may be none
    assert served == -2 or served == pytest.approx(SERVED_S, abs=5)
    keys = bench.keys
    counters = {keys.stats, keys.stats_rows, keys.served, keys.minutes, keys.minute_rows}
    for name in bench.key_names() - counters:
        own = name.removeprefix("superfetch:")
        [kind] = [k for k, start in names.items() if own.startswith(start)] or [own]
        found[kind] = bench.client.ttl(name)
    assert found == pytest.approx(expected, abs=5)


def leaves(bench: Bench, owner: OwnerRecord, **expected: int) -> None:
    """Fails unless an owner can leave, and this is left then."""
    assert bench.registry.leave(owner, 0) == 0
    is_left(bench, **expected)


def reaped(bench: Bench, *jobs: bytes, **record: Any) -> OwnerRecord:
    """An owner that died with jobs, is reaped and whose tombstone is over."""
    owner = bench.dead_owner(jobs, **record)
    bench.reaper().reap()
    assert owner.owner not in bench.registry.owners()
    bench.client.zincrby(bench.keys.reaped, -2000 * TOMBSTONE_S, owner.owner)
    bench.reaper().reap()
    return owner


def done(bench: Bench, *raws: bytes) -> None:
    """Another owner runs the jobs, and leaves."""
    owner = bench.owner()
    claims = bench.claim(owner)
    assert sorted(claimed.job.payload for claimed in claims.jobs) == sorted(raws)
    bench.ack(owner, *claims.jobs)
    assert bench.registry.leave(owner, 0) == 0


def test_an_owner_that_ran_its_jobs_and_left_leaves_nothing(bench, owner):
    bench.push("mail", ONE, TWO)
    claims = bench.claim(owner, starts=2)
    bench.reaper().reap()
    bench.ack(owner, *claims.jobs)
    leaves(bench, owner)


def test_an_owner_whose_last_claim_may_come_late_leaves_a_tombstone(bench, owner):
    bench.reaper().reap()
    assert bench.registry.leave(owner, 20) == 0
    is_left(bench, record=FOR_EVER, tombstone=FOR_EVER)
    bench.client.zincrby(bench.keys.reaped, -60_000, owner.owner)
    bench.reaper().reap()
    is_left(bench, record=TOMBSTONE_TTL_S)


def test_jobs_that_went_back_leave_their_counters_for_the_window(bench, owner):
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE)]
    bench.requeue(*jobs)
    bench.client.delete("mail")
    leaves(bench, owner, counters=WINDOW, has_history=WINDOW)


def test_jobs_that_waited_for_their_time_leave_nothing(bench, owner):
    parked = ParkedJobs(bench.database)
    jobs = [claimed.job for claimed in bench.claimed(owner, ONE, TWO)]
    for job in jobs:
        bench.run(parked.park({job: 1}))
        assert parked.release({}).jobs == 1
        bench.ack(owner, *bench.claim(owner).jobs)
    leaves(bench, owner)


def test_a_reaped_owner_leaves_what_it_may_ask_for_when_it_thaws(bench):
    reaped(bench, ONE, TWO, running=[ONE, TWO])
    done(bench, ONE, TWO)
    is_left(bench, **KEPT, has_history=WINDOW)


@pytest.mark.parametrize("running", [[], [ONE]])
def test_what_a_reaped_owner_sends_late_leaves_no_more(bench, running):
    """A frozen network brings its record of a start, and a requeue, after it was reaped."""
    owner = reaped(bench, ONE, running=running)
    late = Job(owner.owner, "mail", TWO, "77:mail")
    bench.ack(owner, starting=[late])
    assert bench.requeue(late) == 0
    assert not bench.ack(owner, Claimed(late), starting=[late])
    done(bench, ONE)
    is_left(bench, **KEPT, has_history=WINDOW)


def test_what_landed_leaves_nothing(bench, owner):
    bench.land(owner, "mail", ONE)
    claims = bench.claim(owner, landed=["mail"], starts=1)
    bench.ack(owner, *claims.jobs)
    bench.land(owner, "mail", ONE)
    assert bench.lists.return_landed(owner.owner, {"mail": 0}) == 1
    bench.client.delete("mail")
    leaves(bench, owner)


def test_what_landed_for_a_reaped_owner_is_drained(bench):
    owner = bench.dead_owner()
    bench.reaper().reap()
    bench.land(owner, "mail", ONE)
    bench.client.zincrby(bench.keys.reaped, -2000 * TOMBSTONE_S, owner.owner)
    bench.reaper().reap()
    done(bench, ONE)
    is_left(bench, **KEPT)


def test_a_record_that_outlived_its_claim_goes_with_its_owner(bench, owner):
    """Nothing of ours leaves one; whatever did, it is no job that would keep its owner."""
    [job] = bench.give(owner, "mail", [ONE])
    bench.run_one(job)
    bench.client.hdel(bench.keys.private(owner.owner), job.claim_id)
    leaves(bench, owner)


def test_a_job_on_probation_leaves_nothing(bench, owner):
    bench.client.lpush(bench.keys.probation("mail"), ONE)
    bench.client.sadd(bench.keys.on_probation, "mail")
    bench.client.hset(bench.keys.history(digest(ONE)), "solo_runs", 1)
    call = bench.lists.claim_suspect(owner.owner, "mail")
    bench.run(call)
    job = Job(owner.owner, "mail", ONE, call.args[-1])
    bench.ack(owner, Claimed(job, Counters(recoveries=1)))
    leaves(bench, owner)


@pytest.mark.parametrize("how", ["retried", "deleted"])
def test_a_killed_job_leaves_nothing_when_it_has_left_the_dead_set(bench, how):
    [job] = bench.killed(ONE)
    kept = ("dead", "dead:jobs", "dead:unannounced", "dead:caps", "dead:bytes", "dead:of:shop")
    is_left(bench, **dict.fromkeys(kept, FOR_EVER))
    bench.dead_set.announced(job)
    if how == "retried":
        assert bench.retry(job)
        done(bench, ONE)
    else:
        assert bench.dead_set.delete(job.id) == 1
    is_left(bench)


def test_locks_expire(bench):
    assert bench.database.try_lock("pass", 30)
    is_left(bench, **{"lock:pass": 30})


def test_a_lock_does_not_outlive_a_clock_that_was_set_back(bench):
    """A11. The server's expiry is a time of day: an hour back, and no pass was made for an hour."""
    [job] = bench.killed(ONE)
    turn, retry = bench.keys.lock("pass"), bench.keys.lock(f"retry:{job.id}")
    assert bench.database.try_lock("pass", 30)
    assert bench.dead_set.reserve([job]) == [True]
    for lock in (turn, retry):
        bench.client.pexpire(lock, 3_600_000 + bench.client.pttl(lock))
    assert bench.database.try_lock("pass", 10), "whoever asks, for however long"
    assert bench.dead_set.reserve([job]) == [True]
    assert not bench.database.try_lock("pass", 0.1), "the control: it holds as long as ever"
    assert bench.dead_set.reserve([job]) == [False]
    assert [bench.client.ttl(lock) for lock in (turn, retry)] == pytest.approx([10, 60], abs=5)


def test_owners_whose_registry_was_deleted_are_registered_by_hand(make_bench):
    """Their record, and the rows of their hosts, stayed for ever."""
    bench = make_bench(heartbeat_interval=0.1, owner_ttl=0.3, reap_interval=0.1)
    dead, alive = bench.dead_owner(), bench.owner()
    bench.client.delete(bench.keys.owners)
    assert bench.reaper().register_unknown() == 2
    assert set(bench.reaper().reap().dead) == {dead.owner}
    assert bench.registry.leave(alive, 0) == 0
    bench.client.zincrby(bench.keys.reaped, -2000 * TOMBSTONE_S, dead.owner)
    bench.reaper().reap()
    is_left(bench, **KEPT)
    assert bench.reaper().register_unknown() == 0, "a tombstone is none of them"


def test_control_a_key_that_is_left_is_seen(bench):
    bench.client.hset(bench.keys.private("web-9|4|x"), "w1:mail", "")
    with pytest.raises(AssertionError):
        is_left(bench)


@pytest.mark.parametrize("way", ["requeue", "recover", "kill", "retry", "publish a step"])
def test_a_queue_that_expires_in_a_millisecond_does(bench, way):
    """That is its x-expires, and none is another."""
    owner = bench.dead_owner([payload(1)])
    assert bench.mark(owner)
    [job] = bench.held(owner)
    bench.push("mail", b"backlog")
    if way == "requeue":
        bench.run(bench.lists.requeue([job], "front", 1))
    elif way == "recover":
        bench.run(bench.recoveries.recover([bench.recovery(job)], 1, marked=True))
    elif way == "publish a step":
        claim = Claim("here", bench.lists.key_of(job), job.claim_id, 1)
        assert bench.lists.publish_step("one:0", "next", ["mail"], 1, "", claim) == 1
    else:
        call = bench.dead_set.kill_call(bench.recovery(job), 1, marked=True, notice=b"@dead_id@")
        ok, name, _ = bench.run(call)
        assert ok == b"ok"
        if way == "retry":
            bench.push("slow", b"backlog")
            assert bench.retry(bench.dead_set.get(name.decode()), "slow", expires=1)
    eventually(lambda: not bench.client.exists("slow", "mail"))
