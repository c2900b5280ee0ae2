"""D3. A cluster: one app is one slot, and nothing is lost while that slot is moved."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from celery_superfetch.errors import UnsupportedBroker
from celery_superfetch.model.job import Job, digest
from celery_superfetch.store.redis import scripts
from celery_superfetch.store.redis.scripts import source
from celery_superfetch.store.redis.server import check_server
from support.servers.cluster import Cluster, cluster
from support.servers.server import Server
from support.servers.whereabouts import content, places
from support.workers.bench import Bench
from support.workers.scripts import CASES, ONE, TWO

PREFIX = "{shop}:"
SCRIPTS = Path(scripts.__file__).parents[1] / "lua"
REFUSED = 'Set broker_transport_options = {"global_keyprefix": "{shop}:"}'


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture
def nodes(running: Cluster) -> Cluster:
    for node in running.nodes:
        node.client().flushall()
    return running


@pytest.mark.parametrize(
    ("prefix", "fits"),
    [("", False), ("shop:", False), ("{}shop:", False), ("{shop", False), ("a{shop}:", True)],
)
def test_a_prefix_without_a_name_in_braces_is_refused(nodes, prefix, fits):
    client = nodes.nodes[0].client()
    if fits:
        return check_server(client, prefix)
    with pytest.raises(UnsupportedBroker, match="the broker is a cluster"):
        check_server(client, prefix)


def test_a_worker_and_the_commands_refuse_a_cluster_with_the_line_that_mends_it(
    nodes, url, worker, cli
):
    """They ended with a raw ClusterCrossSlotError, and `status` looked healthy."""
    where = {"url": nodes.home(PREFIX).url(), "result_url": url}
    one = worker(concurrency=1, ready=False, **where)
    one.wait_log(REFUSED)
    assert one.wait_exit() != 0
    for command in (["status"], ["dead", "list"], ["reap"]):
        result = cli(*command, code=1, **where)
        assert REFUSED in result.err
        assert "Traceback" not in result.err


def test_an_app_in_one_slot_runs_its_jobs(nodes, url, worker, make_app, cli):
    options = {"global_keyprefix": PREFIX}
    where = {"url": nodes.home(PREFIX).url(), "result_url": url, "options": options}
    worker(concurrency=1, **where)
    assert make_app(**where).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
    assert cli("status", "--json", **where).json()["owners"]


# -- while the slot is moved


def dumped(node: Server) -> dict[bytes, Any]:
    """All that a node has, the keys too that are on their way to it."""
    found = {}
    with node.client().pipeline(transaction=False) as pipe:
        for key in node.client().scan_iter():
            pipe.execute_command("ASKING").dump(key)
            found[key] = pipe.execute()[1]
    return found


@pytest.fixture
def bench(nodes: Cluster) -> Bench:
    """With keys of ours that are there before any script runs."""
    made = Bench(nodes.home(PREFIX).client(), global_keyprefix=PREFIX, dead_limit=1)
    made.client.set(made.keys.has_history, 1)
    made.client.hset(made.keys.stats, "x", 1)
    return made


@pytest.fixture
def move(nodes: Cluster, bench: Bench) -> Iterator[tuple[Server, Server]]:
    """The node that has the slot, and that to which it is on its way."""
    home = nodes.home(PREFIX)
    other = next(node for node in nodes.nodes if node is not home)
    yield home, other
    call_off(nodes, home, other)


def call_off(nodes: Cluster, home: Server, other: Server) -> None:
    for node in (home, other):
        node.client().flushall()
    nodes.call_off_move(nodes.slot(PREFIX))


#: Subsets of a script's keys that have left, at most; chosen by dice where there are more.
SUBSETS = 16


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_script_is_refused_as_a_whole_while_its_slot_is_moved(nodes, bench, move, case):
    """It aborted between a job's departure and its arrival, at a key that it had emptied itself."""
    home, other = move
    slot, dice = nodes.slot(PREFIX), random.Random(1)
    there = {key.encode() for key in case(bench).call.keys} & {*dumped(home)}
    subsets = [set(some) for n in range(len(there) + 1) for some in combinations(there, n)]
    dice.shuffle(subsets)
    for away in subsets[:SUBSETS]:
        call_off(nodes, home, other)
        call = case(bench).call
        nodes.begin_move(slot, home, other)
        for key in away & {*dumped(home)}:
            nodes.move(key, home, other)
        for node, refusal in ((home, (TryAgainError, AskError)), (other, MovedError)):
            before = dumped(node)
            with pytest.raises(refusal):
                Bench(node.client(), global_keyprefix=PREFIX).run(call)
            assert dumped(node) == before
    call_off(nodes, home, other)
    call, _, settles = case(bench)
    before = content(bench.client)
    nodes.move_slot(PREFIX, other)
    moved = Bench(other.client(), global_keyprefix=PREFIX, dead_limit=1)
    moved.run(call)
    found = content(moved.client)
    for raw in (ONE, TWO):
        now, was = len(places(found, raw)), len(places(before, raw))
        assert now in ((0, was) if settles else (was,)), raw


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.lua")))
def test_no_script_at_all_runs_while_its_slot_is_moved(nodes, bench, move, name):
    """With whatever arguments: the server does not come to look at them."""
    home, other = move
    before = dumped(home)
    nodes.begin_move(nodes.slot(PREFIX), home, other)
    with pytest.raises((TryAgainError, AskError)):
        bench.scripts.run(name, [bench.keys.has_history], [])
    assert dumped(home) == before


def test_control_without_the_key_that_never_exists_a_script_ends_half_way(nodes, bench, move):
    home, other = move
    owner = bench.owner().owner
    [job] = bench.give(owner, "mail", [ONE])
    jobs = [job, Job(owner, "mail", TWO, "2:mail")]
    for raw in (ONE, TWO):  # each key that the script names is there
        bench.client.hset(bench.keys.history(digest(raw)), "strikes", 1)
    call = bench.lists.settle_counted(owner, jobs)
    nodes.begin_move(nodes.slot(PREFIX), home, other)
    text = source("ack").partition("\n")[2]
    with pytest.raises(ResponseError, match="non local key"):
        bench.client.eval(text, len(call.keys), *call.keys, *call.args)
    assert call.keys[0].encode() not in dumped(home), "a job has left the private list"


def test_whichever_node_is_named_the_one_that_has_the_slot_is_found(nodes, url, worker, make_app):
    """MOVED is a reply like any other to redis-py: the worker ended with it."""
    at_home = nodes.home(PREFIX)
    [elsewhere, *_] = (node for node in nodes.nodes if node is not at_home)
    where = {"url": elsewhere.url(), "result_url": url, "options": {"global_keyprefix": PREFIX}}
    worker(concurrency=1, **where)
    assert make_app(**where).tasks["shop.add"].delay(2, 3).get(timeout=30) == 5


def test_a_producer_without_a_tag_is_refused(nodes, make_app):
    """Without a retry: none would ever succeed."""
    [elsewhere, *_] = (node for node in nodes.nodes if node is not nodes.home("celery"))
    with pytest.raises(UnsupportedBroker, match=re.escape(REFUSED)):
        make_app(url=elsewhere.url()).tasks["shop.add"].delay(2, 3)


def test_a_database_that_a_cluster_does_not_have_is_refused(nodes, url, make_app):
    where = {"url": nodes.nodes[0].url(1), "result_url": url}
    app = make_app(options={"global_keyprefix": PREFIX}, **where)
    with pytest.raises(UnsupportedBroker, match=r"has no database 1 .* only database 0"):
        app.tasks["shop.add"].delay(2, 3)
