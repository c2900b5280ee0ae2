"""Owners that nobody here can look at: judged by silence and by their connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest
import redis

from celery_superfetch.model.facts import Facts
from celery_superfetch.model.verdict import Reason
from celery_superfetch.model.watch import Watch
from celery_superfetch.store.wire.clients import run_id
from support.waiting import always, eventually
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
    with redis.Redis.from_url(url, single_connection_client=True) as other:
        yield other


def remote(bench: Bench, line: redis.Redis | None = None, **facts: object) -> Facts:
    """An owner of another machine with a job; connected if a line is given."""
    if line is not None:
        facts = {"connections": (line.client_id(),), "run_id": run_id(bench.client), **facts}
    owner = bench.owner(elsewhere(), **facts)
    bench.give(owner.owner, "mail", [payload(1)])
    return owner


def dead(bench: Bench) -> dict[str, Reason]:
    return bench.reaper().reap().dead


def test_unconnected_and_silent_for_two_heartbeats_is_dead(quick: Bench, line: redis.Redis) -> None:
    owner = remote(quick, line)
    line.close()
    found = eventually(lambda: dead(quick), 10)
    assert found == {owner.owner: Reason.DISCONNECTED}
    assert quick.queue() == [payload(1)]


def test_connected_and_silent_is_not_dead_before_its_ttl(quick: Bench, line: redis.Redis) -> None:
    owner = remote(quick, line)
    always(lambda: not dead(quick), 10 * HEARTBEAT)
    line.close()
    assert eventually(lambda: dead(quick), 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


def test_connected_and_silent_for_its_ttl_is_dead(
    make_bench: Callable[..., Bench], line: redis.Redis
) -> None:
    bench = make_bench(heartbeat_interval=0.1, owner_ttl=0.6, reap_interval=0.1)
    owner = remote(bench, line)
    begun = monotonic()
    assert eventually(lambda: dead(bench), 10) == {owner.owner: Reason.SILENT}
    assert monotonic() - begun >= 0.6
    run = run_id(bench.client)
    assert bench.registry.connected(owner, run) is False, "cut off, so that it claims no more"


@pytest.mark.parametrize(
    "facts",
    [{"run_id": ""}, {"run_id": "another run"}, {"connections": ()}],
    ids=["no run id", "another run of the server", "no ids"],
)
def test_where_connections_are_unusable_only_the_ttl_counts(
    quick: Bench, line: redis.Redis, facts: dict[str, object]
) -> None:
    remote(quick, line, **facts)
    line.close()
    always(lambda: not dead(quick), 10 * HEARTBEAT)


def test_an_owner_is_judged_by_its_own_settings(
    quick: Bench, make_bench: Callable[..., Bench], line: redis.Redis
) -> None:
    """Two apps on one database, or two versions during a rollout."""
    slow = make_bench(heartbeat_interval=30, owner_ttl=LONG)
    patient, hasty = remote(slow, line), quick.owner(elsewhere("b"))
    quick.registry.heartbeat(
        hasty,
        0,
        {"connections": f"[{line.client_id()}]", "run_id": run_id(quick.client)},
    )
    line.close()
    assert eventually(lambda: dead(quick), 10) == {hasty.owner: Reason.DISCONNECTED}
    always(lambda: not dead(quick), 5 * HEARTBEAT)
    assert quick.private(patient) == [payload(1)]


def test_an_owner_that_is_heard_is_not_dead(quick: Bench) -> None:
    owner = remote(quick, connections=(1 << 40,), run_id=run_id(quick.client))

    def heard() -> bool:
        quick.registry.heartbeat(owner, 0, {})
        return not dead(quick)

    always(heard, 10 * HEARTBEAT, every=HEARTBEAT / 2)
    assert eventually(lambda: dead(quick), 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


def test_a_first_pass_convicts_nobody_however_old_the_heartbeat_is(quick: Bench) -> None:
    """A server that was down for a day, or whose clock was set forward."""
    owner = remote(quick, connections=(1 << 40,), run_id=run_id(quick.client))
    quick.age(owner, 86_400_000)
    assert dead(quick) == {}


def test_an_outage_between_two_passes_convicts_nobody(
    fresh_server: Callable[..., object],
) -> None:
    """Nobody could be heard meanwhile. The pass after it must leave the owners time to speak."""
    server = fresh_server()
    bench = Bench(
        server.client(), heartbeat_interval=HEARTBEAT, owner_ttl=LONG, reap_interval=HEARTBEAT
    )
    owner = remote(bench, connections=(1 << 40,), run_id=run_id(bench.client))
    assert dead(bench) == {}
    server.pause()
    began = monotonic()
    eventually(lambda: monotonic() - began > 5 * HEARTBEAT)
    server.resume()
    close = 2 * HEARTBEAT
    always(lambda: not dead(bench), close, message="D1. However close the passes come")
    assert eventually(lambda: dead(bench), 10) == {owner.owner: Reason.DISCONNECTED}, "the control"


def test_by_the_watch_of_a_heart_the_same_holds(quick: Bench, line: redis.Redis) -> None:
    """A worker's maintenance: silence is what its own heartbeats saw."""
    owner, mine = remote(quick, line), quick.owner()
    watch = Watch(longest_gap=10 * HEARTBEAT)
    reaper = quick.reaper(watch=watch)
    last = 0

    def beat() -> dict[str, Reason]:
        nonlocal last
        heartbeat = quick.registry.heartbeat(mine, last, {})
        last = heartbeat.now
        watch.look(heartbeat.quiet, monotonic())
        return reaper.reap().dead

    always(lambda: not beat(), 5 * HEARTBEAT, every=HEARTBEAT)
    line.close()
    watch.interrupt()
    assert reaper.reap().dead == {}, "cut off itself, it knows nothing"
    assert eventually(beat, 10, every=HEARTBEAT) == {owner.owner: Reason.DISCONNECTED}
    assert not quick.client.exists(quick.keys.silences), "that is for passes without a heart"


def test_two_containers_of_one_name_and_pid_are_two_owners(
    quick: Bench, url: str, line: redis.Redis
) -> None:
    """Same host name, same pid 1, another pid namespace: one dies, the other keeps its jobs."""
    with redis.Redis.from_url(url, single_connection_client=True) as living_line:
        gone = remote(quick, line)
        living = remote(quick, living_line)
        assert gone.owner.rpartition("|")[0] == living.owner.rpartition("|")[0]
        line.close()
        assert eventually(lambda: dead(quick), 10) == {gone.owner: Reason.DISCONNECTED}
        always(lambda: not dead(quick), 5 * HEARTBEAT)
        assert quick.private(living) == [payload(1)]
