"""A server that stands still for longer than a client waits: it does what nobody hears of."""

from __future__ import annotations

import threading
from time import monotonic
from typing import Any

import pytest
import redis

from celery_superfetch.model.job import digest
from celery_superfetch.store.batches import MOVES_PER_SCRIPT
from celery_superfetch.store.private_lists import WAITS
from celery_superfetch.store.redis.scripts import source
from support.driver import Driver
from support.servers.faults import command, script, unheard
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually
from support.workers.bench import Bench, lost_job, payload

TIMEOUT = 0.3


def test_a_claim_whose_reply_was_lost_is_given_back(server, hasty, owner):
    raws = [payload(n) for n in range(5)]
    hasty.push("mail", *raws)
    held = hasty.driver
    unheard(server, lambda: held.claim(owner.owner, ["mail"], 3, 1, []))
    assert held.needs_reconcile
    assert len(held) == 0
    eventually(lambda: len(hasty.private(owner)) == 3, message="the control: claimed all the same")
    assert held.reconcile(owner.owner, {"mail": 0}) == 3
    assert not held.needs_reconcile
    assert not held.is_reconcile_due, "the second look comes later"
    assert hasty.queue() == raws, "in the old order"
    assert hasty.private(owner) == []
    assert len(held) == 0


def test_a_start_that_an_older_snapshot_has_undone_is_recorded_again(hasty, owner):
    """The server has the job as waiting: the death of its owner would be no strike for it."""
    held = hasty.driver
    held.heartbeat_confirmed(owner.owner)
    ran, waited = hasty.take(owner, payload("ran"), payload("waited"))
    assert hasty.hand_over(ran)
    held.flush()
    assert hasty.recorded(owner) == [digest(ran.job.payload)]
    for claimed in (ran, waited):
        hasty.client.hset(hasty.keys.private(owner.owner), WAITS + claimed.job.claim_id, b"")
    held.needs_reconcile = True
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    assert hasty.recorded(owner) == [digest(ran.job.payload)]
    held.finish(ran)
    held.flush()
    assert hasty.private(owner) == [waited.job.payload]


def test_a_waiting_note_that_an_older_snapshot_lacks_is_put_back(hasty, owner):
    """The server has the jobs as running: the death of their owner would be a strike for each."""
    held = hasty.driver
    held.heartbeat_confirmed(owner.owner)
    [recorded] = hasty.take(owner, payload("recorded"), starts=1)
    held.reserve(recorded.job)
    held.unrecord(recorded.job)
    [withdrawn, running] = hasty.take(owner, payload("withdrawn"), payload("running"))
    assert hasty.hand_over(withdrawn)
    held.withdraw_start(withdrawn.job)
    assert hasty.hand_over(running)
    held.flush()
    assert hasty.recorded(owner) == [digest(running.job.payload)]
    for claimed in (recorded, withdrawn):
        hasty.client.hdel(hasty.keys.private(owner.owner), WAITS + claimed.job.claim_id)
    held.needs_reconcile = True
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    assert hasty.recorded(owner) == [digest(running.job.payload)]


def test_a_job_that_was_recorded_and_not_started_loses_its_record_after_a_reconcile(hasty, owner):
    held = hasty.driver
    [claimed] = hasty.take(owner, payload(1), starts=1)
    held.needs_reconcile = True
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    held.reserve(claimed.job)
    held.unrecord(claimed.job)
    assert hasty.recorded(owner) == []


def test_a_look_that_fails_is_made_again(server, hasty, owner):
    held = hasty.driver
    hasty.push("mail", payload(1))
    unheard(server, lambda: held.claim(owner.owner, ["mail"], 1, 1, []))
    eventually(lambda: hasty.private(owner))
    unheard(server, lambda: held.reconcile(owner.owner, {"mail": 0}))
    assert held.is_reconcile_due
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert hasty.queue() == [payload(1)]


def test_replies_that_a_reconcile_finds_lost_need_no_other_one(server, lost):
    """Their connection was lost while they waited to be read."""
    direct = Bench(server.client())
    with FaultProxy(server.port) as proxy:
        bench = Bench(redis.Redis(port=proxy.port))
        owner, held = bench.owner(), bench.driver
        [claimed] = bench.take(owner, payload(1))
        cut = proxy.cut_at(command("HDEL"), reply_lost=True)
        held.finish(claimed)
        held.post()
        eventually(cut.is_set)
        eventually(lambda: held.has_late_replies)
        assert held.reconcile(owner.owner, {"mail": 0}) == 0
        assert not held.needs_reconcile
    assert (len(held), direct.private(owner), lost) == (0, [], [])


def test_jobs_that_are_requeued_leave_memory_batch_by_batch(server):
    """All that a private list may have would be too much."""
    direct = Bench(server.client())
    with FaultProxy(server.port) as proxy:
        bench = Bench(redis.Redis(port=proxy.port))
        owner = bench.owner()
        direct.give(owner.owner, "mail", [payload(n) for n in range(MOVES_PER_SCRIPT + 1)])
        assert len(direct.held(owner)) == MOVES_PER_SCRIPT + 1
        bench.driver.needs_reconcile = True
        cut = proxy.cut_at(script(source("payloads")), nth=2, reply_lost=False)
        with pytest.raises(redis.ConnectionError):
            bench.driver.reconcile(owner.owner, {"mail": 0})
        assert cut.is_set()
        assert len(direct.queue()) == MOVES_PER_SCRIPT
        assert bench.driver.reconcile(owner.owner, {"mail": 0}) == 1
    assert direct.queue() == [payload(n) for n in range(MOVES_PER_SCRIPT + 1)]


def test_what_is_held_is_not_given_back_with_it(server, hasty, owner):
    """Of two equal payloads one is held, one came with the lost reply."""
    held = hasty.driver
    [known] = hasty.take(owner, payload("same"))
    hasty.push("mail", payload("same"), payload("other"))
    unheard(server, lambda: held.claim(owner.owner, ["mail"], 2, 1, []))
    eventually(lambda: len(hasty.private(owner)) == 3)
    assert held.reconcile(owner.owner, {"mail": 0}) == 2
    assert hasty.private(owner) == [payload("same")]
    assert sorted(hasty.queue()) == sorted([payload("same"), payload("other")])
    assert known.job in held


def test_a_claim_that_arrives_after_the_look_is_found_by_the_second_one(hasty, owner, monkeypatch):
    held = hasty.driver
    held.second_check_after(monkeypatch, 0.2)
    hasty.push("mail", payload(1))
    on_its_way = held.lists.claim_call(owner.owner, ["mail"], 1, 1, [], 0)
    held.needs_reconcile = True
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    hasty.run(on_its_way)
    assert hasty.private(owner) == [payload(1)]
    eventually(lambda: held.is_reconcile_due)
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert hasty.queue() == [payload(1)]
    always(lambda: not held.is_reconcile_due, during=0.5)


def test_a_read_that_is_closed_before_the_check_has_one_of_its_own(hasty, owner, monkeypatch):
    """If it only put the check off, a worker that closes one with each job would never make it."""
    held = hasty.driver
    held.second_check_after(monkeypatch, 0.2)
    held.expect_late()
    assert not held.is_reconcile_due
    eventually(lambda: held.is_reconcile_due)
    held.expect_late()
    assert held.is_reconcile_due, "it is not put off"
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    hasty.land(owner, "mail", payload(1))
    eventually(lambda: held.is_reconcile_due)
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert hasty.queue() == [payload(1)]
    always(lambda: not held.is_reconcile_due, during=0.5)


def test_an_ack_beside_a_start_that_is_said_again_is_no_alarm(server, hasty, owner, lost):
    """The server has carried out the start, and its answer was lost."""
    held = hasty.driver
    one, two = hasty.take(owner, payload(1), payload(2), starts=1)
    assert held.start(one.job)

    def start() -> None:
        assert held.start(two.job), "nobody waits for the answer"
        held.flush()

    unheard(server, start)
    eventually(lambda: len(hasty.recorded(owner)) == 2)
    held.finish(one)
    held.flush()
    assert lost == []
    assert hasty.private(owner) == [payload(2)]


def test_only_the_resent_ack_is_silent(server, hasty, owner, lost):
    held = hasty.driver
    one, two = hasty.take(owner, payload(1), payload(2))
    held.finish(one)
    unheard(server, held.flush)
    hasty.client.delete(hasty.keys.private(owner.owner))
    held.finish(two)
    held.flush()
    assert lost == [lost_job(two.job)]


def test_a_return_whose_reply_was_lost_goes_back_once(server, hasty, owner, lost, caplog):
    held = hasty.driver
    [claimed] = hasty.take(owner, payload(1))
    server.pause()
    held.requeue([claimed.job])  # does not raise: it is called at close and at exit
    assert held.returning_count == 1
    held.write_log()
    assert "Requeue failed (jobs=1)" in caplog.text
    server.resume()
    held.flush()
    assert held.returning_count == 0
    assert hasty.queue() == [payload(1)]
    assert hasty.private(owner) == []
    assert (len(held), lost) == (0, [])


def test_a_return_that_is_repeated_takes_back_nothing_that_was_claimed_since(server, hasty, owner):
    """A blocking read of the same process waits for the job and gets it, before anybody knows
    that it went. It ran twice."""
    held = hasty.driver
    [first] = hasty.take(owner, payload(1))
    held.requeue([first.job])  # from here on the server knows the script
    [claimed] = hasty.take(owner)
    server.pause()
    held.requeue([claimed.job])
    server.resume()
    eventually(hasty.queue, message="the control: it went all the same")
    hasty.client.lmove("mail", hasty.keys.landing(owner.owner, "mail"))
    held.flush()
    assert (hasty.queue(), hasty.landed(owner)) == ([], [payload(1)])
    [again] = held.claim(owner.owner, ["mail"], 1, 0, ["mail"]).jobs
    assert hasty.held(owner) == [again.job]
    assert [*held] == [again.job]
    assert held.needs_reconcile, "or one that no reply spoke of would stay here"


def test_redis_pys_own_retries_do_not_hide_a_lost_reply(server, make):
    """`retry_on_timeout` is an option of kombu's; a claim that redis-py repeats claims twice."""
    bench = Bench(server.client())
    membership = make(params={"socket_timeout": TIMEOUT, "retry_on_timeout": True})
    membership.join(1, {"mail": 0})
    membership.claim(["mail"], 1, 1)
    bench.push("mail", *(payload(n) for n in range(4)))
    outcome: list[Any] = []

    def claim() -> None:
        try:
            outcome.append(membership.claim(["mail"], 2, 1))
        except redis.RedisError as exc:
            outcome.append(exc)

    server.pause()
    thread, began = threading.Thread(target=claim), monotonic()
    thread.start()
    eventually(lambda: monotonic() - began > 1.3 * TIMEOUT)
    server.resume()
    thread.join()
    eventually(lambda: bench.private(membership.name))
    unknown = len(bench.private(membership.name)) - len(Driver.of(membership))
    assert unknown == 0 or Driver.of(membership).needs_reconcile, f"{outcome} hides {unknown} jobs"
    Driver.of(membership).reconcile(membership.name, {"mail": 0})


@pytest.mark.parametrize("remembered", [True, False])
def test_what_a_promoted_replica_had_not_seen_acked_is_acked_again(hasty, owner, lost, remembered):
    """The control: without the memory of what was settled it goes back, and runs again."""
    held = hasty.driver
    [claimed] = hasty.take(owner, payload(1))
    held.finish(claimed)
    held.flush()
    hasty.push("mail", payload(2))
    hasty.run(held.lists.claim_call(owner.owner, ["mail"], 1, 1, [], 0))
    hasty.client.hset(hasty.keys.private(owner.owner), claimed.job.claim_id, payload(1))
    if not remembered:
        held.forget_acks()
    assert held.reconcile(owner.owner, {"mail": 0}) == (1 if remembered else 2)
    assert hasty.private(owner) == []
    assert hasty.queue() == ([payload(2)] if remembered else [payload(1), payload(2)])
    assert (len(held), lost) == (0, [])


def test_a_second_job_of_the_same_bytes_is_not_acked_unseen(server, make, hasty):
    """D4. The reply to its claim was lost within two minutes of the first one's ack."""
    membership = make(params={"socket_timeout": TIMEOUT})
    membership.join(1, {"mail": 0})
    held, again = Driver.of(membership), payload("again")
    for _ in range(2):
        hasty.push("mail", again)
        [claimed] = membership.claim(["mail"], 1, 1).leases
        held.finish(claimed)
        held.flush()
        hasty.push("mail", again)
        unheard(server, lambda: membership.claim(["mail"], 1, 1))
        eventually(lambda: hasty.private(membership.name) == [again])
        assert held.reconcile(membership.name, {"mail": 0}) == 1
        assert hasty.queue() == [again]
        hasty.client.delete("mail")
