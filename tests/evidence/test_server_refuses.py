"""A server that refuses writes: its workers wait for it, or drain it, and none of them ends."""

from __future__ import annotations

import celery
import pytest
import redis
from kombu.exceptions import OperationalError

from support.servers.database import Database
from support.servers.faults import busy
from support.servers.server import Server
from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}


def test_at_a_full_server_workers_start_and_connect_again(
    worker, make_app, ledger, url, fresh_server
):
    """They alone can drain it. Stock workers end where they cannot declare their queues."""
    own: Server = fresh_server(appendonly=True)
    place = {"url": own.url(), "result_url": url, "options": QUICK, "concurrency": 1}
    one = worker(**place)
    hold = make_app(superfetch=False, url=own.url()).tasks["shop.hold"]
    names = [f"job-{n}" for n in range(60)]
    for name in names:
        hold.delay(name, 0.2)
    own.configure(maxmemory="1mb")
    own.kill()
    own.restart()
    one.wait_log("Redis is full: the binding of a queue was not stored (queue=celery, exchange=")
    two = worker(**place)
    eventually(lambda: len(ledger.finishes()) == len(names), 60, message="it is drained")
    assert one.alive()
    assert "Task shop.hold" in two.log()
    with pytest.raises(OperationalError, match="used memory > 'maxmemory'"):
        hold.delay("one more")


def test_a_server_that_refuses_writes_for_a_while_loses_and_doubles_nothing(
    worker, make_app, ledger, url, fresh_server
):
    """As workers see a planned failover, or a disk that is full: an error to each write."""
    own: Server = fresh_server()
    one = worker(url=own.url(), result_url=url, concurrency=1, options=QUICK)
    hold = make_app(superfetch=False, url=own.url()).tasks["shop.hold"]
    names = [f"job-{n}" for n in range(30)]
    for name in names:
        hold.delay(name, 0.1)
    eventually(lambda: len(ledger.starts()) > 5)
    own.client().config_set("min-replicas-to-write", "1")
    with pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS"):
        own.client().set("x", "y")
    always(one.alive, during=2, message="it waits")
    own.client().config_set("min-replicas-to-write", "0")
    eventually(lambda: set(ledger.finishes()) == set(names))
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: not Database(own.client()).private_lists())


def test_workers_that_connect_while_the_server_refuses_writes_wait_for_it(
    worker, make_app, ledger, url, fresh_server
):
    """After a failover of two servers the new primary has no replica, and takes nothing with
    min-replicas-to-write, which docs/run/topologies.md recommends. Who connected then ended."""
    own: Server = fresh_server(appendonly=True)
    place = {"url": own.url(), "result_url": url, "concurrency": 1, "options": QUICK}
    one = worker(**place)
    hold = make_app(superfetch=False, url=own.url()).tasks["shop.hold"]
    names = [f"job-{n}" for n in range(10)]
    for name in names:
        hold.delay(name, 0.5)
    eventually(lambda: len(ledger.starts()) > 1)
    own.configure(min_replicas_to_write=1)
    own.kill()
    own.restart()
    two = worker(ready=False, **place)
    for each in (one, two):
        each.wait_log("the server refuses all writes at the moment (")
    always(lambda: one.alive() and two.alive(), during=3, message="they wait")
    own.client().config_set("min-replicas-to-write", "0")
    eventually(lambda: set(ledger.finishes()) == set(names))
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: not Database(own.client()).private_lists())


@pytest.mark.parametrize("foreign", [True, False])
def test_a_job_that_the_server_refuses_to_take_back_stops_no_reaping(
    worker, shop, ledger, db, foreign
):
    """Another program has written to the key of its queue. The worker tried it again each second,
    and came to nothing else: it found no dead peer. The control: without the foreign key."""
    slow = {**QUICK, "owner_ttl": 60, "reap_interval": 60}
    one = worker(queues=["qa"], concurrency=1, options=slow)
    two = worker(queues=["qb"], concurrency=1, options=slow)
    shop.hold.apply_async(("a", 600), queue="qa")
    shop.hold.apply_async(("b", 600), queue="qb")
    eventually(lambda: len(ledger.starts()) == 2)
    if foreign:
        db.client.set("qa", "not a list")
    one.kill9_child()
    if foreign:
        one.wait_log("Redis refused to settle a job of this worker (WRONGTYPE")
        one.wait_log("Another program wrote to a key of celery_superfetch")
    two.die()
    eventually(lambda: db.client.llen("qb") == 1, 15, message="its job is recovered")
    assert "Maintenance cannot reach Redis" not in one.log()
    if foreign:
        db.client.delete("qa")
        one.wait_log("Redis accepts the settlement of this worker's jobs again")
        eventually(lambda: len(ledger.starts()) == 3 or ledger.runs()["a"] == 2)


def test_workers_that_start_or_connect_at_a_busy_server_wait_for_it(
    worker, make_app, ledger, url, fresh_server
):
    """A long script of another program: its server was taken for one that runs no scripts, and the
    workers ended."""
    own: Server = fresh_server()
    place = {"url": own.url(), "result_url": url, "concurrency": 1, "options": QUICK}
    one = worker(**place)
    hold = make_app(superfetch=False, url=own.url()).tasks["shop.hold"]
    hold.delay("job", 6)
    eventually(ledger.starts)
    with busy(own, ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")):
        one.wait_log("Connection to broker lost")
        two = worker(ready=False, **place)
        two.wait_log("Cannot connect to ")
        always(lambda: one.alive() and two.alive(), during=4, message="they wait")
    hold.delay("another", 0)
    eventually(lambda: set(ledger.finishes()) == {"job", "another"})
    assert ledger.runs() == {"job": 1, "another": 1}
    two.wait_ready()
    eventually(lambda: not Database(own.client()).private_lists())


@pytest.mark.parametrize("without", ["", "patience_with_refusals"])
def test_a_chord_whose_parts_end_at_a_busy_result_server_is_completed(
    worker, make_app, ledger, fresh_server, url, without
):
    """The read before the store was refused: the parts were acked without a result and uncounted,
    and the chord waited for ever. The control: without patience."""
    results: Server = fresh_server()
    one = worker(app="choirs", result_url=results.url(), concurrency=2, env={"WITHOUT": without})
    app = make_app(result_url=results.url())
    parts = [app.signature("choir.part", (index,)) for index in range(2)]
    body = celery.chord(parts, app.signature("choir.body"), app=app)()
    eventually(lambda: len(ledger.starts()) == 2)
    with busy(results):
        ledger.release()
        eventually(lambda: one.log().count("could not store its result (BUSY") or without)
        always(one.alive, during=3)
    if without:
        always(lambda: not ledger.runs().get("body"), during=3, message="it waits for ever")
        return
    assert sorted(index for index, _pid in body.get(timeout=30)) == [0, 1]
    assert ledger.runs() == {"part 0": 1, "part 1": 1, "body": 1}
