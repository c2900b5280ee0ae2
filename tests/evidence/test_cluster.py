"""An app in one slot of a cluster, under load: nodes fail over, crash and stand still, workers die,
and the slot moves, both ways.

Twenty of each: `pytest tests/evidence/test_cluster.py --runs=20`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import celery
import pytest
import redis

from celery_superfetch.store.redis import slots
from support.servers.cluster import Cluster, is_primary
from support.servers.database import Database
from support.waiting import always, eventually
from support.workers.load import Load

PREFIX = "{shop}:"
OWNER_TTL = 5.0
OPTIONS = {
    "heartbeat_interval": 0.5,
    "owner_ttl": OWNER_TTL,
    "reap_interval": 1,
    "global_keyprefix": PREFIX,
    # Less than a node stands still here. One that wakes may take, as its last act as a primary,
    # what somebody still waits for.
    "socket_timeout": 2,
}
POOLS = {"prefork": 3, "threads": 3}

#: Where a job runs throughout. Before 5.7 Celery forgets at a reconnect which of its processes
#: are at work, and lets other jobs wait behind what they run, for as long as it runs.
HOLDING = [pool for pool in POOLS if pool != "prefork" or celery.VERSION >= (5, 7)]

#: What may be done twice because a replica had not heard of its ack.
LAG = 3


@pytest.fixture
def place(nodes: Cluster, url: str) -> dict[str, Any]:
    """Where apps find their broker: any node but the one that serves their slot."""
    home = nodes.home(PREFIX)
    [seed, *_] = (node for node in nodes.nodes if node is not home)
    return {"url": seed.url(), "result_url": url, "options": OPTIONS}


@pytest.fixture
def there(nodes: Cluster) -> Database:
    return Database(nodes.client(), PREFIX)


def another(nodes: Cluster) -> Any:
    """A primary that does not serve the slot."""
    home = nodes.home(PREFIX)
    return next(node for node in nodes.living if node is not home and is_primary(node))


def planned(nodes: Cluster) -> None:
    nodes.fail_over(PREFIX)


def crashed(nodes: Cluster) -> None:
    nodes.crash(PREFIX)


def cut_off(nodes: Cluster) -> None:
    """For longer than `owner_ttl`; then the old primary is heard again, and is none any more."""
    before, heir = nodes.cut_off(PREFIX)
    always(lambda: is_primary(heir), during=OWNER_TTL + 1)
    before.resume()


def moved(nodes: Cluster) -> None:
    nodes.move_slot(PREFIX, another(nodes))


def moved_at_once(nodes: Cluster) -> None:
    try:
        nodes.move_slot_at_once(PREFIX, another(nodes))
    except redis.ResponseError as exc:
        pytest.skip(f"this server moves no slot atomically: {exc}")


LOSSLESS = [planned, moved, moved_at_once]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("trouble", [*LOSSLESS, crashed, cut_off], ids=lambda one: one.__name__)
def test_what_befalls_the_nodes_loses_nothing(
    worker, make_app, nodes, place, there, ledger, trouble, run
):
    workers = [
        worker(pool=pool, concurrency=size, name=pool, queues=[pool], **place)
        for pool, size in POOLS.items()
    ]
    with Load(make_app(**place), ledger, [*POOLS], every=0.05, seed=run, retry=True) as load:
        # An owner that is idle when it connects again is another.
        held = [load.hold(pool) for pool in HOLDING]
        load.wait_progress()
        before = there.heard_of(map(there.owner_of, held))
        assert len(before) == len(held)
        trouble(nodes)
        load.wait_progress(5)
        there.wait_heard(before)
        account = load.settle()
    assert not account.lost, account
    assert not load.in_doubt, "whoever publishes waits until the slot is served again"
    assert len(account.doubled) <= (0 if trouble in LOSSLESS else LAG), account
    eventually(lambda: not there.private_lists(), message="the acks arrived")
    assert there.stat("owners_reaped") == 0
    assert len(there.owners()) == len(POOLS)
    assert {*before} <= {*there.owners()}
    begun = sorted(at for runs in ledger.starts().values() for at in runs)
    pause = max(after - at for at, after in pairwise(begun))
    print(f"{trouble.__name__}: of {account.published} jobs none began for {pause:.2f} s at most")
    for one in workers:
        one.term()
    assert [one.wait_exit() for one in workers] == [0] * len(workers)
    assert there.owners() == []
    if trouble in LOSSLESS:  # Celery's consumer goes on, and nobody is called for it
        for one in workers:
            assert "Connection to broker lost" not in one.log()
            assert "ERROR/" not in one.log()


@pytest.mark.timeout(180)
def test_a_killed_worker_s_jobs_come_back(worker, make_app, nodes, place, there, ledger, run):
    """Also while the slot is on its way to another node."""
    start = {"pool": "prefork", "concurrency": 3, **place}
    victim, _ = worker(**start), worker(**start)
    with Load(make_app(**place), ledger, every=0.05, seed=run, retry=True) as load:
        load.wait_progress(10)
        killed = {child.pid for child in victim.children()}
        victim.kill9_all()
        ran = {line["job"] for line in ledger.lines("started") if line["pid"] in killed}
        moved(nodes)
        worker(**start)
        load.wait_progress(10)
        account = load.settle()
    assert not account.lost, account
    assert set(account.doubled) <= ran, account
    eventually(lambda: not there.private_lists())
    assert there.stat("owners_reaped") == 1


# -- the controls


def test_a_worker_that_does_not_look_for_its_slot_takes_no_job_after_a_failover(
    worker, make_app, nodes, place, ledger, there
):
    home = {**place, "url": nodes.home(PREFIX).url()}
    worker(pool="threads", concurrency=1, env={"WITHOUT": "slots"}, **home)
    note = make_app(**place).tasks["shop.note"]
    note.delay("before")
    eventually(ledger.finishes)
    nodes.fail_over(PREFIX)
    note.delay("after")
    always(lambda: "after" not in ledger.starts(), during=3)
    assert there.waiting() == ["after"]


def test_a_producer_without_patience_fails_while_a_primary_is_elected(
    make_app, nodes, place, ledger, monkeypatch
):
    monkeypatch.setattr(slots, "SEARCH_TIMEOUT_S", 0.0)
    with Load(make_app(**place), ledger, every=0.05, retry=True) as load:
        eventually(lambda: len(load.published) > 3)
        nodes.crash(PREFIX)
        sent = len(load.published)
        eventually(lambda: len(load.published) > sent)
    assert load.in_doubt
