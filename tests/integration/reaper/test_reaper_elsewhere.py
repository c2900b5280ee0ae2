"""Owners that nobody here can look at: judged by silence and by their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.staleness import StalenessTracker
from celery_superfetch.model.verdict import Reason
from celery_superfetch.reaper.evidence import Onlooker
from celery_superfetch.store.redis.clients import run_id
from celery_superfetch.store.redis.connections import with_client_defaults
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere, payload

HEARTBEAT = 0.2
#: A ttl that no test waits for: who dies before it dies of something else.
LONG = 3600.0


@pytest.fixture
def quick(make_bench: Callable[..., Bench]) -> Bench:
    """Heartbeats of 0.2 s, and passes that come as often."""
    return make_bench(heartbeat_interval=HEARTBEAT, owner_ttl=LONG, reap_interval=HEARTBEAT)


@pytest.fixture
def line(url: str) -> Iterator[redis.Redis]:
    """A connection that belongs to an owner elsewhere."""
    with redis.Redis.from_url(
        url, single_connection_client=True, **with_client_defaults({})
    ) as other:
        yield other


def remote(bench: Bench, line: redis.Redis | None = None, **record: object) -> OwnerRecord:
    """An owner of another machine with a job; connected if a line is given."""
    if line is not None:
        record = {"connections": (line.client_id(),), "run_id": run_id(bench.client), **record}
    owner = bench.owner(elsewhere(), **record)
    bench.give(owner.owner, "mail", [payload(1)])
    return owner


class Passes:
    """Passes of one who stays, with a look before each: whom each finds dead. The time between them
    goes by without being waited for."""

    def __init__(self, bench: Bench) -> None:
        self.now = 0.0
        self.onlooker = Onlooker(bench.registry, clock=lambda: self.now)
        self.reaper = bench.reaper(staleness=self.onlooker.staleness)

    def __call__(self) -> dict[str, Reason]:
        self.now += HEARTBEAT / 4
        self.onlooker.judge_owners()
        return self.reaper.reap().dead

    def find_nobody(self, during: float) -> bool:
        end = self.now + during
        while self.now < end and not self():
            pass
        return self.now >= end


def test_unconnected_and_silent_for_two_heartbeats_is_dead(quick, line):
    dead = Passes(quick)
    owner = remote(quick, line)
    line.close()
    found = eventually(dead, 10)
    assert found == {owner.owner: Reason.DISCONNECTED}
    assert quick.queue() == [payload(1)]


def test_connected_and_silent_is_not_dead_before_its_ttl(quick, line):
    dead = Passes(quick)
    owner = remote(quick, line)
    assert dead.find_nobody(10 * HEARTBEAT)
    line.close()
    assert eventually(dead, 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


@pytest.mark.since("7.2", "before, a server cannot tell connections of this package from others")
def test_connected_and_silent_for_its_ttl_is_dead(make_bench, line):
    bench = make_bench(heartbeat_interval=0.1, owner_ttl=0.6, reap_interval=0.1)
    dead = Passes(bench)
    owner = remote(bench, line)
    begun = dead.now
    assert eventually(dead, 10) == {owner.owner: Reason.SILENT}
    assert dead.now - begun >= 0.6
    run = run_id(bench.client)
    assert bench.registry.connected(owner, run) is False, "cut off, so that it claims no more"


@pytest.mark.parametrize(
    "record",
    [{"run_id": ""}, {"run_id": "another run"}, {"connections": ()}],
    ids=["no run id", "another run of the server", "no ids"],
)
def test_where_connections_are_unusable_only_the_ttl_counts(quick, line, record):
    dead = Passes(quick)
    remote(quick, line, **record)
    line.close()
    assert dead.find_nobody(10 * HEARTBEAT)


def test_an_owner_is_judged_by_its_own_settings(quick, make_bench, line):
    """Two apps on one database, or two versions during a rollout."""
    dead = Passes(quick)
    slow = make_bench(heartbeat_interval=30, owner_ttl=LONG)
    patient, hasty = remote(slow, line), quick.owner(elsewhere("b"))
    quick.registry.heartbeat(
        hasty, 0, {"connections": f"[{line.client_id()}]", "run_id": run_id(quick.client)}
    )
    line.close()
    assert eventually(dead, 10) == {hasty.owner: Reason.DISCONNECTED}
    assert dead.find_nobody(5 * HEARTBEAT)
    assert quick.private(patient) == [payload(1)]


def test_an_owner_that_is_heard_is_not_dead(quick):
    dead = Passes(quick)
    owner = remote(quick, connections=(1 << 40,), run_id=run_id(quick.client))

    for _ in range(40):  # 10 heartbeats
        quick.registry.heartbeat(owner, 0, {})
        assert not dead()
    assert eventually(dead, 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


def test_a_first_pass_convicts_nobody_however_old_the_heartbeat_is(quick):
    """A server that was down for a day, or whose clock was set forward."""
    dead = Passes(quick)
    owner = remote(quick, connections=(1 << 40,), run_id=run_id(quick.client))
    quick.age(owner, 86_400_000)
    assert dead() == {}


def test_an_outage_between_two_passes_convicts_nobody(fresh_server):
    """Nobody could be heard meanwhile. The pass after it must leave the owners time to speak."""
    server = fresh_server()
    bench = Bench(
        server.client(), heartbeat_interval=HEARTBEAT, owner_ttl=LONG, reap_interval=HEARTBEAT
    )
    dead = Passes(bench)
    owner = remote(bench, connections=(1 << 40,), run_id=run_id(bench.client))
    assert dead() == {}
    server.pause()
    dead.now += 5 * HEARTBEAT
    server.resume()
    assert dead.find_nobody(2 * HEARTBEAT), "D1. However close the passes come"
    assert eventually(dead, 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


def test_by_the_watch_of_a_heart_the_same_holds(quick, line):
    """A worker's maintenance: silence is what its own heartbeats saw."""
    owner, mine = remote(quick, line), quick.owner()
    last, now = 0, 0.0
    staleness = StalenessTracker(10 * HEARTBEAT, clock=lambda: now)
    reaper = quick.reaper(staleness=staleness)

    def beat() -> dict[str, Reason]:
        nonlocal last, now
        heartbeat = quick.registry.heartbeat(mine, last, {})
        last, now = heartbeat.now, now + HEARTBEAT
        staleness.observe(heartbeat.quiet, now)
        return reaper.reap().dead

    assert not any(beat() for _ in range(5))
    line.close()
    staleness.interrupt()
    assert reaper.reap().dead == {}, "cut off itself, it knows nothing"
    assert eventually(beat, 10) == {owner.owner: Reason.DISCONNECTED}


def test_two_containers_of_one_name_and_pid_are_two_owners(quick, url, line):
    """Same host name, same pid 1, another pid namespace: one dies, the other keeps its jobs."""
    dead = Passes(quick)
    with redis.Redis.from_url(url, single_connection_client=True) as living_line:
        gone = remote(quick, line)
        living = remote(quick, living_line)
        assert gone.owner.rpartition("|")[0] == living.owner.rpartition("|")[0]
        line.close()
        assert eventually(dead, 10) == {gone.owner: Reason.DISCONNECTED}
        assert dead.find_nobody(5 * HEARTBEAT)
        assert quick.private(living) == [payload(1)]
