"""D3. A cluster: one app is one slot, and nothing is lost while that slot is moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import AskError, ResponseError, TryAgainError

from celery_superfetch.errors import UnsupportedBroker
from celery_superfetch.model.facts import Facts
from celery_superfetch.model.job import Job, digest
from celery_superfetch.store.wire.scripts import Call, source
from celery_superfetch.store.wire.server import check_server
from support.servers.cluster import Cluster, cluster
from support.servers.server import NoServerBinary, Server
from support.servers.whereabouts import content, places
from support.workers.bench import Bench, payload
from support.workers.worker import Worker

PREFIX = "{shop}:"
ONE, TWO, OTHER = payload("1"), payload("2"), payload("other")
REFUSED = 'Set broker_transport_options = {"global_keyprefix": "{shop}:"}'


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    try:
        with cluster() as made:
            yield made
    except NoServerBinary as exc:
        pytest.skip(str(exc))


@pytest.fixture
def nodes(running: Cluster) -> Cluster:
    for node in running.nodes:
        node.client().flushall()
    return running


@pytest.mark.parametrize(
    ("prefix", "fits"),
    [("", False), ("shop:", False), ("{}shop:", False), ("{shop", False), ("a{shop}:", True)],
)
def test_a_prefix_without_a_name_in_braces_is_refused(
    nodes: Cluster, prefix: str, fits: bool
) -> None:
    client = nodes.nodes[0].client()
    if fits:
        return check_server(client, prefix)
    with pytest.raises(UnsupportedBroker, match="the broker is a cluster"):
        check_server(client, prefix)


def test_a_worker_and_the_commands_refuse_a_cluster_with_the_line_that_mends_it(
    nodes: Cluster, url: str, worker: Callable[..., Worker], cli: Callable[..., Any]
) -> None:
    """They ended with a raw ClusterCrossSlotError, and `status` looked healthy."""
    where = {"url": nodes.home(PREFIX).url(), "result_url": url}
    one = worker(concurrency=1, ready=False, **where)
    one.wait_log(REFUSED)
    assert one.wait_exit() != 0
    for command in (["status"], ["dead", "list"], ["reap"]):
        result = cli(*command, code=1, **where)
        assert REFUSED in result.err
        assert "Traceback" not in result.err


def test_an_app_in_one_slot_runs_its_jobs(
    nodes: Cluster,
    url: str,
    worker: Callable[..., Worker],
    make_app: Callable[..., Any],
    cli: Callable[..., Any],
) -> None:
    options = {"global_keyprefix": PREFIX}
    where = {"url": nodes.home(PREFIX).url(), "result_url": url, "options": options}
    worker(concurrency=1, **where)
    assert make_app(**where).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
    assert cli("status", "--json", **where).json()["owners"]


# -- while the slot is moved


def settled(bench: Bench) -> Facts:
    """A living owner; and keys of ours that are there before any script runs."""
    owner = bench.owner()
    bench.push("mail", OTHER)
    bench.client.lpush(bench.keys.probation("mail"), OTHER)
    bench.client.sadd(bench.keys.on_probation, "mail")
    bench.client.set(bench.keys.recovered, 1)
    bench.client.hset(bench.keys.stats, "x", 1)
    for raw in (ONE, TWO, OTHER):
        bench.client.hset(bench.keys.recoveries(digest(raw)), "recoveries", 0)
    bench.client.hset(bench.keys.running(owner.owner), "x", "1")
    return owner


def claim(bench: Bench, owner: Facts) -> Call:
    return bench.lists.claim(owner.owner, ["mail"], 2, 1)


def probation(bench: Bench, owner: Facts) -> Call:
    return bench.lists.claim_alone(owner.owner, "mail")


def unhold(bench: Bench, owner: Facts) -> Call:
    bench.give(owner.owner, "mail", [TWO])
    bench.client.hset(bench.keys.held(owner.owner, "mail"), "1", ONE)
    return bench.lists.unhold(owner.owner, "mail", ["1", "2"])


def hold(bench: Bench, owner: Facts) -> Call:
    bench.give(owner.owner, "mail", [ONE])
    bench.client.hset(bench.keys.held(owner.owner, "mail"), "1", TWO)
    name, queue = owner.owner, "mail"
    return bench.lists.hold([Job(name, queue, ONE, "2"), Job(name, queue, TWO, "3")])


def requeue(bench: Bench, owner: Facts) -> Call:
    bench.give(owner.owner, "mail", [ONE])
    bench.client.hset(bench.keys.held(owner.owner, "mail"), "1", TWO)
    name, queue = owner.owner, "mail"
    jobs = [Job(name, queue, ONE, "2"), Job(name, queue, OTHER, "3")]
    return bench.lists.requeue(jobs, "front", 0)


def recover(bench: Bench, owner: Facts) -> Call:
    bench.give(owner.owner, "mail", [ONE])
    name, queue = owner.owner, "mail"
    found = [bench.recovery(Job(name, queue, raw)) for raw in (ONE, TWO)]
    return bench.recoveries.recover(found, 0, marked=False)


def kill(bench: Bench, owner: Facts) -> Call:
    bench.killed(OTHER)
    bench.client.hset(bench.keys.recoveries(digest(ONE)), "recoveries", 0)
    bench.client.set(bench.keys.dead_overflow("shop"), 1)
    bench.give(owner.owner, "mail", [ONE])
    return bench.dead_set.kill(bench.recovery(Job(owner.owner, "mail", ONE)), marked=False)


def revive(bench: Bench, owner: Facts) -> Call:
    [job] = bench.killed(ONE)
    bench.client.hset(bench.keys.recoveries(digest(ONE)), "recoveries", 0)
    bench.dead_set.reserve([job])
    return bench.dead_set.revive(job, "mail", 0)


CASES = [claim, probation, hold, unhold, requeue, recover, kill, revive]


def dumped(node: Server) -> dict[bytes, Any]:
    client = node.client()
    return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_script_is_refused_as_a_whole_while_its_slot_is_moved(
    nodes: Cluster, case: Callable[[Bench, Facts], Call]
) -> None:
    """It aborted between a job's departure and its arrival, at a key that it had emptied itself."""
    source, slot = nodes.home(PREFIX), nodes.slot(PREFIX)
    [target, *_] = (node for node in nodes.nodes if node is not source)
    bench = Bench(source.client(), global_keyprefix=PREFIX)
    call = case(bench, settled(bench))
    all_of_them = content(bench.client)
    nodes.begin_move(slot, source, target)
    # Before the first key has gone, after each, and after the last.
    for key in [None, *dumped(source)]:
        if key is not None:
            nodes.move(key, source, target)
        before = dumped(source)
        with pytest.raises((TryAgainError, AskError)):
            bench.run(call)
        assert dumped(source) == before
    nodes.end_move(slot, source, target)
    try:
        moved = Bench(target.client(), global_keyprefix=PREFIX)
        moved.run(call)
        there = content(moved.client)
        for raw in (ONE, TWO, OTHER):
            assert len(places(there, raw)) == len(places(all_of_them, raw)), raw
    finally:
        target.client().flushall()
        nodes.begin_move(slot, target, source)
        nodes.end_move(slot, target, source)


def test_control_without_the_key_that_never_exists_a_script_ends_half_way(nodes: Cluster) -> None:
    at_home, slot = nodes.home(PREFIX), nodes.slot(PREFIX)
    [target, *_] = (node for node in nodes.nodes if node is not at_home)
    bench = Bench(at_home.client(), global_keyprefix=PREFIX)
    call = hold(bench, settled(bench))
    nodes.begin_move(slot, at_home, target)
    try:
        text = source("hold").partition("\n")[2]
        with pytest.raises(ResponseError, match="non local key"):
            bench.client.eval(text, len(call.keys), *call.keys, *call.args)
        assert call.keys[0].encode() not in dumped(at_home), "a job has left the private list"
    finally:
        nodes.call_off_move(slot)


def test_of_several_servers_the_one_that_has_the_slot_is_found(
    nodes: Cluster, url: str, worker: Callable[..., Worker], make_app: Callable[..., Any]
) -> None:
    """MOVED is a reply like any other to redis-py: the worker ended with it."""
    at_home = nodes.home(PREFIX)
    [elsewhere, *_] = (node for node in nodes.nodes if node is not at_home)
    where = {"result_url": url, "options": {"global_keyprefix": PREFIX}}
    one = worker(concurrency=1, url=elsewhere.url(), ready=False, **where)
    one.wait_log("the cluster does not serve our slot here")
    assert one.alive()
    both = f"{elsewhere.url()};{at_home.url()}"
    worker(concurrency=1, url=both, **where)
    assert make_app(url=both, **where).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
