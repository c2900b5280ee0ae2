"""The heart of an owner: what it says, and that nothing stops it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

import pytest
import redis

from celery_superfetch.owner.owner import Owner
from celery_superfetch.store.redis.clients import run_id
from celery_superfetch.store.redis.scripts import source
from support.driver import Driver
from support.servers.faults import script
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere


@pytest.fixture
def membership(make: Callable[..., Owner]) -> Owner:
    """One that is heard ten times a second."""
    made = make(heartbeat_interval=0.1)
    made.join(1, {"mail": 0})
    return made


def test_the_heart_goes_on_while_the_main_thread_is_blocked(membership, bench):
    before = bench.score(membership)
    bench.client.blpop(["nothing-comes"], 1)
    assert bench.score(membership) - before > 500


def test_the_heart_needs_no_connection_of_the_others(membership, bench):
    """A pool that is used up."""
    pool = membership.client.connection_pool
    pool.max_connections = 1
    taken = redis.Redis(connection_pool=pool, single_connection_client=True)
    before = bench.score(membership)
    eventually(lambda: bench.score(membership) > before + 300, 5)
    taken.close()


def test_the_heart_takes_nobodys_lock(make, proxy, bench):
    """C3: others hold theirs while they wait for the server, or run a user's receiver."""
    membership = make(proxy.url(), heartbeat_interval=0.1)
    membership.join(1, {"mail": 0})
    old = membership.name

    def is_heard() -> None:
        before = bench.score(membership)
        eventually(lambda: bench.score(membership) > before + 300, 5)

    with membership._lock, Driver.of(membership).lock:
        is_heard()
        proxy.refuse()
        proxy.cut()
        eventually(
            lambda: not membership.heartbeat_session._last_ms, 5, message="it cannot connect"
        )
        proxy.heal()
        eventually(
            lambda: membership.deferred_calls, 5, message="its loss is somebody else's to mend"
        )
        is_heard()
        eventually(lambda: bench.mark(old, "silent"), 5)
        eventually(lambda: membership.name != old, 5)
        is_heard()
        assert set(bench.registry.owners()) == {membership.name}
    assert not membership.outages
    membership.catch_up()
    assert membership.outages == 1


def test_its_connections_are_registered_and_named_anew_when_they_change(membership, bench):
    first = bench.record(membership)
    run = run_id(bench.client)
    assert first.run_id == run
    assert bench.registry.connected(first, run) is True
    bench.client.client_kill_filter(_id=first.connections[0])
    eventually(lambda: bench.record(membership).connections != first.connections, 10)
    assert bench.registry.connected(bench.record(membership), run) is True
    membership.blocking.add(4711)
    eventually(lambda: 4711 in bench.record(membership).connections, 5)
    membership.blocking.discard(4711)
    eventually(lambda: 4711 not in bench.record(membership).connections, 5)


def test_a_heartbeat_connection_that_was_closed_while_idle_is_no_failure(membership, bench, caplog):
    """A server or proxy with a short idle timeout closes it before each heartbeat: every one would
    fail first, and no owner's staleness would ever grow."""
    caplog.set_level(logging.INFO)
    stale = bench.owner(elsewhere())
    score = bench.score(stale)

    def staleness() -> float:
        return membership.staleness.staleness_of(stale.owner, score, monotonic()) or 0.0

    eventually(lambda: staleness() > 0)
    for _ in range(5):
        before = staleness()
        bench.client.client_kill_filter(_id=membership.record.connections[0])
        eventually(lambda before=before: staleness() > before + 0.3, 5)
    membership.catch_up()
    assert not membership.outages, "no other connection is distrusted"
    assert not Driver.of(membership).is_reconcile_due, "no reply was lost with it"
    assert not caplog.records


def test_a_heartbeat_whose_connection_breaks_on_the_way_is_repeated_at_once(
    make, proxy, bench, caplog
):
    """The server may close it between the look and the heartbeat."""
    caplog.set_level(logging.INFO)
    membership = make(proxy.url(), heartbeat_interval=600, owner_ttl=6000)
    membership.join(1, {"mail": 0})
    for reply_lost in (True, False):
        before = bench.score(membership)
        cut = proxy.cut_at(script(source("heartbeat")), reply_lost=reply_lost)
        assert membership.heartbeat().status == "ok"
        assert cut.is_set()
        assert bench.score(membership) > before
    assert not caplog.records


def test_a_server_that_comes_back_from_an_older_snapshot_gets_the_whole_record(
    fresh_server, make, caplog, monkeypatch
):
    """What had changed since, and did not change again, stayed as it was then."""
    caplog.set_level(logging.INFO)
    server = fresh_server()
    bench, membership = Bench(server.client()), make(server.url(), heartbeat_interval=0.1)
    membership.join(1, {"mail": 0})
    server.client().save()
    monkeypatch.setattr(membership.executor, "pids", lambda: [(7, "start")])
    membership.stopping = True
    membership.blocking.add(4711)
    membership.join(1, {"mail": 0, "slow": 0})

    def is_whole() -> bool:
        record = bench.record(membership)
        told = record.state, record.pool, 4711 in record.connections, {*record.lists}
        return told == ("stopping", ((7, "start"),), True, {"mail", "slow"})

    eventually(is_whole, 5)
    run, [row] = run_id(server.client()), bench.registry.owners()
    server.kill()
    server.restart()
    eventually(lambda: bench.record(membership).run_id not in ("", run), 10)
    assert is_whole()
    assert [*bench.registry.owners()] == [row]
    assert Driver.of(membership).is_reconcile_due, "its jobs are reconciled"
    assert caplog.text.count("Redis restarted, or another server took its place") == 1


def test_what_changes_is_told_with_the_next_heartbeat(membership, bench, monkeypatch):
    monkeypatch.setattr(membership.executor, "pids", lambda: [(7, "start")])
    membership.stopping = True

    def told() -> bool:
        record = bench.record(membership)
        return (record.pool, record.state) == (((7, "start"),), "stopping")

    eventually(told, 5)


def test_that_it_stops_is_told_before_a_heartbeat_is_due(make, bench):
    membership = make(heartbeat_interval=600, owner_ttl=6000)
    membership.join(1, {"mail": 0})
    membership.stopping = True
    eventually(lambda: bench.record(membership).state == "stopping", 5)


def test_the_heart_survives_an_outage_and_says_so_once(fresh_server, make, caplog):
    caplog.set_level(logging.INFO)
    server = fresh_server(appendonly=True, appendfsync="always")
    bench = Bench(server.client())
    membership = make(server.url(), heartbeat_interval=0.1)
    membership.join(1, {"mail": 0})
    owner, before = membership.name, bench.score(membership)
    server.kill()
    eventually(lambda: "failed" in caplog.text, 10)
    assert membership.staleness.staleness_of("anybody", 1, 0.0) is None, "what it saw is void"
    server.restart()
    eventually(lambda: bench.score(membership) > before, 10)
    assert membership.name == owner
    eventually(lambda: "Heartbeat restored" in caplog.text, 5)
    assert caplog.text.count("Heartbeat") == 2


def test_a_heart_that_could_not_connect_where_it_moved_goes_there_later(fresh_server, make, caplog):
    """It went on at the server that was left, while claims went to the other: in silence there."""
    caplog.set_level(logging.INFO)
    there, membership = fresh_server(), make(heartbeat_interval=0.1)
    membership.join(1, {"mail": 0})
    there.kill()
    membership.heartbeat_session.move({"host": "127.0.0.1", "port": there.port})
    eventually(lambda: "failed" in caplog.text, 10)
    there.restart()
    eventually(lambda: "Heartbeat restored" in caplog.text, 10)
    assert set(Bench(there.client()).registry.owners()) == {membership.name}
