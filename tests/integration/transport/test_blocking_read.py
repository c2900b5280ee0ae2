"""Calling off a blocking read, whichever of the two commands the server sees first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_superfetch.owner.owner import BLOCK_TIMEOUT
from celery_superfetch.store.redis.clients import cut, run_id, unblock
from celery_superfetch.transport.fetch.blocking_reads import BlockingRead
from support.driver import Driver
from support.interruption import interrupted
from support.servers.commands import blocked, calls
from support.servers.proxy import FaultProxy
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox


def opened(inbox: Inbox) -> BlockingRead:
    inbox.channel.fetch.upkeep.register({"mail": 0})
    read = BlockingRead(inbox.channel.owner)
    read.connect()
    return read


@pytest.fixture
def read(url: str) -> Iterator[BlockingRead]:
    """One that is not armed yet."""
    with Inbox(url, consume=False) as inbox:
        made = opened(inbox)
        yield made
        made.close()


def test_a_read_that_the_server_has_not_seen_yet_is_called_off_all_the_same(read):
    """They come by two connections, so that UNBLOCK may be there first; its reply is 0 then."""
    began = monotonic()
    late = threading.Timer(0.2, read.arm, ["mail"])
    late.start()
    assert unblock(read.owner.client, [read])
    late.join()
    assert read.read() is None
    assert monotonic() - began < BLOCK_TIMEOUT / 2


def test_a_read_that_was_served_already_brings_its_job(read, bench):
    read.arm("mail")
    bench.push("mail", payload(1))
    assert unblock(read.owner.client, [read])
    assert read.read() == payload(1)


def test_what_cannot_be_called_off_in_time_is_left_to_wait(read):
    """It is never armed: the server knows it, and it never blocks."""
    assert not unblock(read.owner.client, [read])


def test_the_ids_of_one_server_are_strangers_at_another(fresh_server):
    """D5. A failover behind one address: the read still leads to the old server, and whoever
    calls it off, or cuts it, connects to the new one."""
    old, new = fresh_server(), fresh_server()
    strangers: list[redis.Redis] = []
    with FaultProxy(old.port) as address:
        inbox = Inbox(address.url(), consume=False)
        membership, read = inbox.channel.owner, opened(inbox)
        read.arm("mail")
        address.upstream = ("127.0.0.1", new.port)
        membership.client.connection_pool.disconnect()
        while not strangers or strangers[-1].client_id() < read.id:
            strangers.append(redis.Redis(port=new.port, single_connection_client=True))
        waiting = [threading.Thread(target=other.blpop, args=("none", 3)) for other in strangers]
        for one in waiting:
            one.start()
        look = new.client()
        eventually(lambda: blocked(look) == len(strangers))
        assert not unblock(membership.client, [read]), "it cannot be called off from here,"
        assert not read.close(), "nor cut: a claim may still land"
        cut(look, run_id(old.client()), [read.id])
        assert blocked(look) == len(strangers)
        for one in waiting:
            one.join()
        for other in strangers:
            other.close()
        address.upstream = ("127.0.0.1", old.port)
        membership.client.connection_pool.disconnect()
        inbox.close()


def test_a_read_that_waits_at_the_exit_of_its_process_strands_no_job(url, bench):
    """A program exits without closing its connection: the server serves the read until the process
    is gone. A reaper finds the job by the tombstone of its owner."""
    with Inbox(url) as inbox:
        inbox.settle_in()
        owner = inbox.channel.owner
        eventually(lambda: blocked(bench.client))
        name = owner.name
        owner.leave_for_good()
        assert set(bench.registry.tombstones()) == {name}
        bench.push("mail", payload(1))
        eventually(lambda: not bench.queue(), message="the job lands")
        bench.reaper().reap()
        assert bench.queue() == [payload(1)]


def test_what_one_channel_names_no_other_has(bench):
    """One owner, two channels that wait on one list: whoever claims first has what landed for both,
    and a reply that is read later speaks of nothing."""
    mine, raws = bench.owner(), [payload(1), payload(1), payload(2)]
    bench.land(mine, "mail", *raws)
    first = bench.driver.claim(mine.owner, ["mail"], 5, 0, ["mail"])
    second = bench.driver.claim(mine.owner, ["mail"], 5, 0, ["mail"])
    assert [job.payload for job, _ in first.jobs] == raws, "the oldest first"
    assert len({job.claim_id for job, _ in first.jobs}) == 3, "of the same bytes, too"
    assert second.jobs == []


def test_what_another_channel_gave_back_is_in_its_queue_alone(bench):
    mine = bench.owner()
    bench.land(mine, "mail", payload(1), payload(2))
    assert bench.driver.reconcile(mine.owner, {"mail": 0}) == 2
    assert bench.queue() == [payload(1), payload(2)]
    assert bench.driver.claim(mine.owner, ["mail"], 5, 0, ["mail"]).jobs == []


def test_two_channels_of_one_owner_leave_no_job_that_landed_for_the_other(url, bench):
    """The two have one landing list for each queue. Of a each gets a job, and only the first gets
    b's: if its claim took both of a, nothing would name b's job."""
    with Inbox(url, "a", "b", prefetch=2) as one, Inbox(url, "a", "b", prefetch=2) as two:
        assert one.channel.owner is two.channel.owner
        for _ in range(3):
            one.settle_in()
            two.settle_in()
        bench.push("a", payload(1), payload(2))
        bench.push("b", payload(3))
        owner = one.channel.owner.name
        eventually(lambda: (len(bench.landed(owner, "a")), len(bench.landed(owner, "b"))) == (2, 1))

        def turned() -> list[str]:
            one.turn(0.01)
            two.turn(0.01)
            return sorted(one.ids() + two.ids())

        eventually(lambda: turned() == ["1", "2", "3"], 10, 0)


def test_a_read_that_broke_with_a_job_leaves_none_behind(server, bench):
    """The server has moved the job, its reply is lost, and the first to notice calls it off."""
    with FaultProxy(server.port) as proxy, Inbox(proxy.url()) as inbox:
        done = proxy.cut_at(lambda words: words[:2] == [b"BLMOVE", b"mail"], reply_lost=True)
        inbox.settle_in()
        reads = inbox.channel.fetch.reads
        [read] = [read for read in reads.armed if read.queue_list == "mail"]
        bench.push("mail", payload(1))
        eventually(done.is_set)
        with pytest.raises(RedisConnectionError):
            reads.call_off([read])
        inbox.channel.close()
        assert bench.queue() == [payload(1)]
    assert bench.registry.owners() == {}


def test_a_read_that_is_interrupted_leaves_no_job_behind(proxy, bench):
    """Half of the reply has come, and a signal handler raises."""
    proxy.halve_at(lambda words: words[:2] == [b"BLMOVE", b"mail"])
    with Inbox(proxy.url(), prefetch=1) as inbox:
        inbox.settle_in()
        bench.push("mail", payload(1))
        eventually(lambda: bench.queue() == [])
        with interrupted():
            inbox.receive(1)
        assert inbox.receive(1)
        inbox.ack_all()
        eventually(lambda: inbox.turn() or not bench.held())


def test_what_no_claim_has_named_goes_back_when_its_connection_is_gone(url, bench):
    with Inbox(url, prefetch=1) as inbox:
        inbox.settle_in()
        fetch = inbox.channel.fetch
        [read] = [read for read in fetch.reads.armed if read.queue_list == "mail"]
        bench.push("mail", payload(1))
        eventually(lambda: bench.queue() == [])
        fetch.reads.call_off([read])
        assert [*fetch.backlog.landed] == [(fetch.owner.name, "mail", payload(1))]
        fetch.reads.close()
    assert bench.queue() == [payload(1)]
    assert bench.registry.owners() == {}


@pytest.mark.since("7.0", "before, it does not count the calls of a subcommand")
def test_a_server_that_ends_no_wait_is_not_asked_for_each_job(fresh_server):
    """Behind several proxies an id may be one that the proxy which is asked never gave: to find out
    takes a second. The reads are closed instead, since this consumer may run a job in its thread;
    the next are opened as ever."""
    server = fresh_server()
    look, asked = server.client(), []
    with Inbox(server.url()) as inbox:
        reads = inbox.channel.fetch.reads
        for number in range(2):
            eventually(lambda: inbox.turn() or len(reads.armed) == 4)
            for read in reads.armed:
                read.id += 10**6
            before = calls(look, "client|list")
            reads.call_off(reads.armed)
            asked.append(calls(look, "client|list") - before)
            assert not reads.armed, number
            eventually(lambda: blocked(look) == 0)
    first, second = asked
    assert second <= 4 < first, "to close one looks for its id once"


@pytest.mark.since("7.0", "before, permissions for a subcommand cannot be withdrawn")
def test_what_has_landed_by_a_read_that_is_closed_goes_back(fresh_server):
    server = fresh_server()
    server.client().execute_command("ACL", "SETUSER", "default", "-client|unblock")
    bench = Bench(server.client())
    with Inbox(server.url()) as inbox:
        reads = inbox.channel.fetch.reads
        eventually(lambda: inbox.turn() or len(reads.armed) == 4)
        bench.push("mail", payload(1))
        eventually(lambda: not bench.queue(), message="it has landed")
        reads.call_off(reads.armed)
        assert bench.queue() == [payload(1)]
        inbox.receive(1)


@pytest.mark.since("7.0", "before, permissions for a subcommand cannot be withdrawn")
def test_what_lands_by_a_read_that_a_proxy_keeps_goes_back(fresh_server, monkeypatch):
    """The service allows neither CLIENT UNBLOCK nor CLIENT KILL, and its proxy keeps the BLMOVE of
    a read that was closed: it moves a job when all that was due at the close is done."""
    server = fresh_server()
    bench = Bench(server.client())
    forbidden = ["-client|unblock", "-client|kill"]
    server.client().execute_command("ACL", "SETUSER", "default", *forbidden)
    with Inbox(server.url()) as inbox:
        reads, owner = inbox.channel.fetch.reads, inbox.channel.owner
        eventually(lambda: inbox.turn() or len(reads.armed) == 4)
        Driver.of(owner).second_check_after(monkeypatch, 2)
        reads.call_off(reads.armed)
        owner.catch_up()
        bench.land(owner, "mail", payload(1))
        inbox.receive(1)


def test_an_idle_consumer_ends_its_checks_after_a_lost_reply_and_leaves_its_reads(url, monkeypatch):
    """The second check closed the reads, which made the next reconcile due: each idle owner opened
    its connections anew each minute, for ever."""
    with Inbox(url) as inbox:
        driver, reads = Driver.of(inbox.channel.owner), inbox.channel.fetch.reads
        driver.second_check_after(monkeypatch, 1)
        eventually(lambda: inbox.turn() or len(reads.armed) == 4)
        driver.needs_reconcile = True
        eventually(lambda: inbox.turn() or driver.awaits_second_check, message="the first")
        eventually(lambda: inbox.turn() or len(reads.armed) == 4, message="its reads wait again")
        armed = {*reads.armed}
        eventually(lambda: inbox.turn() or not driver.awaits_second_check, message="the second")
        assert {*reads.armed} == armed


@pytest.mark.since("7.0", "before, permissions for a subcommand cannot be withdrawn")
@pytest.mark.parametrize("forbidden", ["-client|setinfo", "-client|kill", "-client|list"])
def test_a_read_that_is_closed_says_whether_a_claim_may_land_afterwards(fresh_server, forbidden):
    """If it said no where the server has cut nothing, its owner would leave no tombstone, and a
    late job would wait in a landing list of an owner that is gone. Without CLIENT SETINFO, as
    before Redis 7.2, the server knows the read by its address."""
    server = fresh_server()
    server.client().execute_command("ACL", "SETUSER", "default", forbidden)
    with Inbox(server.url(), consume=False) as inbox:
        read = opened(inbox)
        read.arm("mail")
        eventually(lambda: blocked(server.client()) == 1)
        is_cut = forbidden == "-client|setinfo"
        assert read.close() is is_cut
        assert calls(server.client(), "client|kill") == int(is_cut)
