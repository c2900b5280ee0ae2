"""A process as an owner: registered before it claims, heard until it leaves."""

from __future__ import annotations

import os
import threading
from functools import partial

import pytest
import redis
from redis.connection import parse_url

from celery_superfetch.model.strikes import Limits
from celery_superfetch.owner.heartbeat_thread import HeartbeatThread
from celery_superfetch.owner.owner import MANY_UNUSED, Owner
from celery_superfetch.owner.process_owners import owner_for, owners_of_process
from celery_superfetch.store.redis.scripts import source
from support.driver import Driver
from support.servers.faults import kill_connections, script
from support.waiting import eventually
from support.workers.bench import payload


def hearts(member: Owner) -> int:
    """Heartbeat threads of this membership; others of this process may still be ending."""
    return sum(
        isinstance(thread, HeartbeatThread) and thread.session is member.heartbeat_session
        for thread in threading.enumerate()
    )


def test_before_it_joins_a_process_is_nobody(make, bench):
    membership = make()
    assert membership.name == ""
    assert not hearts(membership)
    assert bench.key_names() == set()


def test_joining_registers_process_and_lists_before_the_first_claim(make, bench):
    membership = make()
    membership.join(1, {"mail": 0, "slow": 60000})
    assert membership.name
    assert abs(bench.database.server_time() - bench.score(membership)) < 5000
    record = bench.record(membership)
    assert record.lists == {"mail": 0, "slow": 60000}
    assert record.process == membership.record.process
    assert record.app == "shop"
    assert hearts(membership) == 1


def test_a_queue_that_is_added_is_registered_before_its_first_claim(member, bench):
    owner = member.name
    member.join(1, {"mail": 0, "more": 0})
    assert member.name == owner
    assert set(bench.record(owner).lists) == {"mail", "more"}
    assert hearts(member) == 1, "still one"


def test_lists_that_nobody_claims_from_any_more_are_forgotten(member, bench):
    """C10. A thousand queues, one after the other, left a record of 100 kB for good."""
    member.join(2, {"also": 0})
    for number in range(3 * MANY_UNUSED):
        member.join(1, {"mail": 0, f"reply-{number}": 1000})
        if number == 7:
            bench.push("reply-7", payload(7))
            [claimed] = member.claim(["reply-7"], 1, 1).leases
    known = bench.record(member).lists
    assert len(known) <= MANY_UNUSED + 4
    assert {"mail", "also", "reply-7", f"reply-{number}"} <= known.keys()
    assert len(Driver.of(member).expires_ms_by_list) <= MANY_UNUSED + 4
    # What it still has is recovered as ever; and what it has settled is in no one's way.
    Driver.of(member).finish(claimed)
    Driver.of(member).flush()
    assert bench.stat("ownership_lost") == 0


def test_while_it_is_not_known_what_is_in_a_list_it_stays_registered(member, bench):
    """C10. A lost reply may have brought a job, and a second look may find it."""
    bench.give(member.name, "reply-7", [payload(7)])

    def join(first: int) -> set[str]:
        for number in range(first, first + MANY_UNUSED + 2):
            member.join(1, {f"reply-{number}": 0})
        return set(bench.record(member).lists)

    assert "reply-7" in join(0), "it is not empty"
    bench.client.delete(bench.keys.private(member.name))
    Driver.of(member).needs_reconcile = True
    assert "reply-7" in join(200)
    Driver.of(member).reconcile(member.name, member.record.lists)
    assert "reply-7" in join(400), "it looks again"
    Driver.of(member).make_second_check_due()
    Driver.of(member).reconcile(member.name, member.record.lists)
    assert "reply-7" not in join(600)


def test_a_reply_that_is_lost_when_a_second_check_is_due_has_one_of_its_own(member):
    driver = Driver.of(member)
    for _ in range(2):
        driver.needs_reconcile = True
        driver.reconcile(member.name, member.record.lists)
        assert driver.awaits_second_check
        driver.make_second_check_due()
    driver.reconcile(member.name, member.record.lists)
    assert not driver.awaits_second_check


def test_a_deleted_registry_is_written_again_and_nothing_runs_twice(member, bench):
    owner = member.name
    bench.push("mail", payload(1), payload(2))
    [held] = member.claim(["mail"], 1, 1).leases
    bench.client.delete(bench.keys.owners)
    [other] = member.claim(["mail"], 1, 1).leases
    assert member.name == owner, "the same owner: its lists are its own"
    assert set(bench.registry.owners()) == {owner}
    assert not bench.reaper().register_unknown()
    assert not bench.reaper().reap().did_something
    assert bench.queue() == []
    for claimed in (held, other):
        Driver.of(member).finish(claimed)
    Driver.of(member).flush()
    assert bench.private(owner) == []


def test_an_emptied_database_makes_it_a_new_owner(member, bench):
    old = member.name
    bench.client.flushdb()
    bench.push("mail", payload(1))
    [claimed] = member.claim(["mail"], 1, 1).leases
    assert claimed.job.owner == member.name != old
    assert set(bench.registry.owners()) == {member.name}
    assert set(bench.record(member).lists) == {"mail"}


def test_a_reaped_process_goes_on_as_a_new_owner(member, bench, caplog):
    caplog.set_level("INFO")
    old = member.name
    bench.push("mail", payload(1))
    [thawed] = member.claim(["mail"], 1, 1).leases
    assert bench.mark(member, "silent")
    bench.reaper().reap()
    assert bench.queue() == [payload(1)]
    [again] = member.claim(["mail"], 1, 1).leases
    assert again.job.owner == member.name != old
    member.catch_up()  # a loop's next turn, or a worker's maintenance
    assert old in caplog.text
    assert member.name in caplog.text
    Driver.of(member).finish(thawed)
    Driver.of(member).flush()
    assert bench.private(member.name) == [payload(1)], "the old claim settles nothing of the new"
    Driver.of(member).finish(again)
    Driver.of(member).flush()
    assert bench.private(member.name) == []


def test_leaving_takes_every_key_along(member, bench):
    bench.push("mail", payload(1))
    [claimed] = member.claim(["mail"], 1, 1).leases
    Driver.of(member).finish(claimed)
    Driver.of(member).flush()
    member.leave(1)
    assert bench.key_names() == {bench.keys.served}
    assert member.name == ""
    eventually(lambda: not hearts(member), 5)


def test_a_process_leaves_with_its_last_channel(member, bench):
    member.join(2, {"mail": 0})
    member.leave(1)
    assert member.name
    member.leave(2)
    assert not member.name
    assert bench.registry.owners() == {}


def test_a_process_with_a_running_job_stays_registered_when_its_channel_closes(member, bench):
    bench.push("mail", payload(1))
    [running] = member.claim(["mail"], 1, 1).leases
    Driver.of(member).deliver(running.job)
    member.leave(1)
    assert member.name
    assert bench.private(member.name) == [payload(1)]
    Driver.of(member).finish(running)
    Driver.of(member).flush()
    member.leave(1)
    assert bench.key_names() == {bench.keys.served}


def test_at_its_end_a_process_gives_back_what_it_holds(member, bench):
    raws = [payload(n) for n in range(250)]
    bench.push("mail", *raws)
    while bench.queue():
        member.claim(["mail"], 64, 1)
    member.leave_for_good()
    assert bench.queue() == raws
    assert bench.registry.owners() == {}
    assert bench.private(member.name) == []


def test_one_that_fails_by_itself_keeps_what_it_runs_until_a_peer_finds_it_gone(
    member, bench, caplog
):
    """Else nobody would be to blame."""
    bench.push("mail", payload(1), payload(2))
    running, idle = member.claim(["mail"], 2, 1).leases
    assert Driver.of(member).start(running.job)
    member.stopping = member.failing = True
    member.heartbeat()
    assert bench.record(member).state == "running"
    member.leave_for_good()
    assert bench.queue() == [idle.job.payload]
    assert bench.private(member.name) == [running.job.payload]
    assert set(bench.registry.owners()) == {member.name}
    assert "stays registered" not in caplog.text, "it has not tried to leave"
    Driver.of(member).finish(running)
    member.leave_for_good()
    assert bench.registry.owners() == {}


def test_a_settlement_that_is_deferred_is_made_before_the_process_ends(member, bench):
    """A job that had killed its pool process was requeued as one that the stop had cut short: it
    got no strike."""
    bench.push("mail", payload(1))
    [claimed] = member.claim(["mail"], 1, 1).leases
    driver = Driver.of(member)
    assert driver.start(claimed.job)
    limits = Limits.of(bench.config)
    lost = partial(driver.recover_or_kill, claimed.job, "pool process lost", None, limits)
    member.deferred_calls.append(lost)
    member.leave_for_good()
    assert bench.queue() == [payload(1)]
    counters = bench.counters(payload(1))
    assert (counters.strikes, counters.stops) == (1, 0)
    assert bench.registry.owners() == {}


def test_one_that_fails_by_itself_keeps_no_job_that_waits_for_its_requeue(member, bench):
    """The server had refused to move it: it was left to a peer."""
    bench.push("mail", payload(1))
    [refused] = member.claim(["mail"], 1, 1).leases
    Driver.of(member).requeue_later(refused.job)
    member.stopping = member.failing = True
    member.leave_for_good()
    assert bench.queue() == [payload(1)]
    assert bench.registry.owners() == {}


def test_a_read_of_an_earlier_channel_is_not_forgotten_by_the_last_one(member, bench):
    member.join(2, {"mail": 0})
    name = member.name
    member.leave(1, may_land=True)
    member.leave(2)
    assert set(bench.registry.tombstones()) == {name}
    bench.land(name, "mail", payload(1))
    bench.reaper().reap()
    assert bench.queue() == [payload(1)]


def test_connections_that_were_cut_a_moment_ago_keep_nobody_from_leaving_in_order(make, bench):
    member = make(heartbeat_interval=30)  # its heart does not learn of it first
    member.join(1, {"mail": 0})
    bench.push("mail", payload(1), payload(2), payload(3))
    acked, held, given_back = member.claim(["mail"], 3, 1).leases
    assert Driver.of(member).start(held.job)
    Driver.of(member).requeue([given_back.job])
    Driver.of(member).finish(acked)
    kill_connections(bench.client)
    member.leave_for_good()
    assert sorted(bench.queue()) == [payload(2), payload(3)]
    assert bench.registry.owners() == {}
    assert bench.private(member.name) == []


def test_one_who_left_can_come_back_as_a_new_owner(member, bench):
    old = member.name
    member.stopping = True
    member.leave(1)
    member.join(2, {"mail": 0})
    assert member.name not in {"", old}
    assert set(bench.registry.owners()) == {member.name}
    assert bench.record(member).state == "running"


def test_a_heartbeat_under_way_does_not_bring_back_one_who_left(make, bench):
    membership = make(heartbeat_interval=0.001)
    for user in range(200):
        membership.join(user, {"mail": 0})
        membership.leave(user)
        eventually(lambda: not hearts(membership), 5, every=0.001)
        assert bench.registry.owners() == {}, f"in round {user}"


def test_a_forked_child_is_not_its_parents_owner(member, bench, url):
    mine = owner_for(parse_url(url), bench.config)
    assert mine in owners_of_process()
    bench.push("mail", payload(1))
    [held] = member.claim(["mail"], 1, 1).leases
    pid = os.fork()
    if not pid:
        found = len(owners_of_process())
        member.leave_for_good()  # what the parent's would do at exit
        os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "it has none"
    assert bench.private(member.name) == [held.job.payload]
    assert set(bench.registry.owners()) == {member.name}
    assert mine in owners_of_process()


def test_the_channels_of_a_process_share_one_membership_per_database(url, make_bench):
    params, config = parse_url(url), make_bench().config
    one = owner_for(params, config)
    assert owner_for(dict(params), config) is one
    assert owner_for(params, make_bench().config) is one, "the same options, read anew"
    assert owner_for({**params, "db": 5}, config) is not one
    assert owner_for(params, make_bench(global_keyprefix="x:").config) is not one


def test_a_server_that_cannot_be_asked_registers_nobody(make):
    membership = make(params={"port": 1})
    with pytest.raises(redis.ConnectionError):
        membership.join(1, {"mail": 0})
    assert not membership.name
    assert not hearts(membership)


def test_a_registration_whose_answer_was_lost_leaves_no_second_name(make, bench, proxy):
    """Nobody would speak under the first one again, nor could a neighbour take it for dead: its
    process is there. It would be shown as frozen until this process ends."""
    registers = script(source("heartbeat"))
    bench.registry.leave(bench.owner(), 0)  # the server knows the script
    member = make(params={"port": proxy.port})
    member.client.ping(), member.heartbeat_session.registry.client.ping()  # they are connected
    cut = proxy.cut_at(registers, reply_lost=True)
    proxy.refuse()  # else it is repeated at once
    with pytest.raises(redis.ConnectionError):
        member.join(1, {"mail": 0})
    assert cut.is_set()
    proxy.heal()
    member.join(1, {"mail": 0})
    assert list(bench.registry.owners()) == [member.name]
    assert bench.mark(member, "silent")
    cut = proxy.cut_at(registers, nth=2, reply_lost=True)  # the first one learns of that
    member.heartbeat()
    assert cut.is_set()
    assert list(bench.registry.owners()) == [member.name]


def test_a_plain_consumer_is_busy_until_its_job_is_acked(member, bench):
    """It has no pool that could say so: no suspect gets a solo run beside the job."""
    driver = Driver.of(member)
    assert not member.busy
    bench.push("mail", payload(1))
    [claimed] = driver.claim(member.name, ["mail"], 1).jobs
    driver.deliver(claimed.job)
    assert member.busy
    driver.finish(claimed)
    assert not member.busy, "its ack may wait for the next send"


def test_a_call_that_the_server_refuses_for_good_stops_no_other(member, bench):
    """One raised, each second, before the others and the acks: a single job whose queue's key is of
    another type kept a worker from settling, and from finding dead peers."""
    bench.client.set("other", "no list")
    bench.push("mail", payload(1))
    [claimed] = member.claim(["mail"], 1, 1).leases
    made: list[str] = []

    def refused() -> None:
        made.append("refused")
        member.client.lpush("other", "x")

    member.deferred_calls.extend((refused, lambda: made.append("other")))
    Driver.of(member).finish(claimed)
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            member.catch_up()
    assert made == ["refused", "other", "refused"]
    assert bench.private(member.name) == [], "the ack was sent"
    bench.client.delete("other")
    member.catch_up()
    assert not member.deferred_calls


def test_without_its_server_a_call_is_made_once_and_the_others_wait(make, proxy, bench):
    """The control: each of them would wait for the same lost server."""
    member = make(proxy.url())
    member.join(1, {"mail": 0})
    made: list[str] = []

    def lost() -> None:
        made.append("lost")
        raise redis.ConnectionError("away")

    member.deferred_calls.extend((lost, lambda: made.append("other")))
    with pytest.raises(redis.ConnectionError):
        member.catch_up()
    assert made == ["lost"]
    assert len(member.deferred_calls) == 2
    member.deferred_calls.clear()
