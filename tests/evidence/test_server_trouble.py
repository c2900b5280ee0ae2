"""A server that forgets, is full, or refuses: said clearly in the log, and no job is lost."""

from __future__ import annotations

from contextlib import suppress

import pytest
import redis

from celery_superfetch.store.redis.server import check_server
from support.servers.database import Database
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.bench import Bench, payload

QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}


def test_deleting_the_registry_under_load_runs_nothing_twice(worker, shop, ledger, db):
    for _ in range(2):
        worker(concurrency=2, options=QUICK)
    before = set(db.owners())
    names = [f"job-{n}" for n in range(200)]
    for name in names:
        shop.hold.delay(name, 0.05)
    for part in (20, 70, 120, 170):
        eventually(lambda at=part: len(ledger.starts()) >= at)
        db.client.delete("superfetch:owners")
    eventually(lambda: len(ledger.finishes()) == len(names))
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: set(db.owners()) == before, message="both have registered again")
    eventually(lambda: not db.private_lists())
    assert db.stat("owners_reaped") == 0


def test_deleting_the_registry_of_a_dead_owner_loses_nothing(worker, shop, ledger, db, cli):
    """Nobody registers it again, until `reap --full` finds its private lists."""
    victim = worker(concurrency=1, options=QUICK)
    shop.run("running")
    victim.kill9_all()
    for key in ("owners", *(key.removeprefix("superfetch:") for key in db.keys("superfetch:ow*"))):
        db.client.delete(f"superfetch:{key}")
    worker(concurrency=1, options=QUICK)
    assert cli("reap", "--full", "--json", options=QUICK).json()["registered"] == 1
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    ledger.release()
    eventually(lambda: ledger.finishes())
    assert ledger.runs() == {"running": 2}


def test_a_full_server_is_drained_and_nobody_is_judged_by_silence(
    worker, make_app, ledger, url, fresh_server
):
    own: Server = fresh_server()
    there = Database(own.client())
    place = {"url": own.url(), "result_url": url, "options": QUICK}
    both = [worker(concurrency=1, **place) for _ in range(2)]
    owners = set(there.owners())
    hold = make_app(superfetch=False, url=own.url()).tasks["shop.hold"]
    names = [f"job-{n}" for n in range(120)]
    for name in names:
        hold.delay(name, 0.1)
    own.client().config_set("maxmemory", "1mb")
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        own.client().set("full", "x")
    eventually(lambda: len(ledger.finishes()) == len(names), 60, message="it is drained")
    always(
        lambda: set(there.owners()) == owners and there.stat("owners_reaped") == 0,
        during=QUICK["owner_ttl"] + 1,
        message="everybody is heard",
    )
    assert ledger.runs() == dict.fromkeys(names, 1)
    eventually(lambda: not there.private_lists())
    assert not any("No job can be claimed" in one.log() for one in both), "nothing is wrong there"

    own.client().config_set("maxmemory", "0")
    hold.delay("after", 0)
    eventually(lambda: ledger.finishes().get("after"), message="idle workers are woken again")


@pytest.mark.parametrize("without", ["", "spared_connections"])
def test_where_connections_are_scarce_a_worker_waits_by_none(
    worker, make_app, ledger, url, fresh_server, without
):
    """Those by which it waits are more than it needs, and each is one that a producer cannot have.
    The control takes the refusal for a lost broker, and connects again and again."""
    own: Server = fresh_server()
    one = worker(concurrency=2, url=own.url(), result_url=url, env={"WITHOUT": without})
    app = make_app(superfetch=False, url=own.url())
    note = app.tasks["shop.note"]
    note.delay("before")
    eventually(lambda: ledger.finishes().get("before"))
    eventually(lambda: own.client().info("clients")["blocked_clients"] == 4)
    client = own.client()
    # Two for who tells the worker of another queue, which needs four more.
    client.config_set("maxclients", client.info("clients")["connected_clients"] + 2)
    app.control.add_consumer("another")
    if without:
        eventually(lambda: one.log().count("Connection to broker lost") > 2)
        return
    one.wait_log("Redis accepts no more connections (max number of clients reached)")
    note.apply_async(("after",), queue="another")
    eventually(lambda: ledger.finishes().get("after"), message="it looks, and finds it")
    assert own.client().ping(), "there is room for others"
    assert "Connection to broker lost" not in one.log()


def test_a_revoke_that_a_full_server_refuses_is_not_forgotten(worker, make_app, url, fresh_server):
    own: Server = fresh_server()
    there = Database(own.client())
    one = worker(concurrency=1, url=own.url(), result_url=url, options=QUICK)
    app = make_app(superfetch=False, url=own.url())
    job = app.tasks["shop.note"].apply_async(("later",), countdown=3600)
    eventually(lambda: there.parked() == ["later"])
    own.client().config_set("maxmemory", "1mb")
    app.control.revoke(job.id)
    one.wait_log("Tasks flagged as revoked")
    always(lambda: there.parked() == ["later"], during=3)
    own.client().config_set("maxmemory", "0")
    eventually(lambda: not there.parked(), message="it came, and was discarded")


def test_a_full_server_does_not_stop_the_reaper(worker, make_app, ledger, url, fresh_server):
    own: Server = fresh_server()
    there = Database(own.client())
    place = {"url": own.url(), "result_url": url, "options": QUICK, "concurrency": 1}
    victim = worker(**place)
    make_app(superfetch=False, url=own.url()).tasks["shop.hold"].delay("running")
    eventually(lambda: ledger.starts())
    worker(**place)
    own.client().config_set("maxmemory", "1mb")
    victim.kill9_all()
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    ledger.release()
    eventually(lambda: ledger.finishes())
    eventually(lambda: not there.private_lists(), message="its ack is accepted")
    assert not there.client.zcard("superfetch:deaths")
    own.client().config_set("maxmemory", "0")
    eventually(lambda: there.client.zcard("superfetch:deaths") == 1, message="the next pass did")


def test_a_server_that_may_evict_keys_is_warned_of(worker, fresh_server):
    own: Server = fresh_server(maxmemory_policy="allkeys-lru")
    one = worker(url=own.url(), concurrency=1)
    log = one.log()
    assert log.count("maxmemory-policy=allkeys-lru") == 1, "E7. Not at each look"
    assert "noeviction" in log


def test_a_server_that_evicts_what_expires_keeps_the_jobs(fresh_server, caplog):
    """By `volatile-lru`, ElastiCache's default: of ours strikes expire, and no job does."""
    own: Server = fresh_server(maxmemory_policy="volatile-lru")
    client, bench = own.client(), Bench(own.client())
    dead = bench.dead_owner([payload(n) for n in range(20)], running=[payload(0), payload(1)])
    bench.push("mail", payload("waits"))
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 2**20)
    for n in range(8):
        client.set(f"result-{n}", "x" * 2**16, ex=1000)
    with suppress(redis.exceptions.OutOfMemoryError):
        for n in range(50):
            client.set(f"kept-{n}", "x" * 2**16)
    assert not client.keys("result-*"), "all that expires is gone"
    assert len(bench.queue()) + len(bench.private(dead)) == 21
    check_server(client)
    assert "may be evicted with their jobs" not in caplog.text
    assert "volatile-lru): strikes and queues" in caplog.text


def test_a_wrong_password_is_said_and_the_queue_is_left_alone(
    worker, make_app, ledger, fresh_server
):
    own: Server = fresh_server(requirepass="right")
    make_app(superfetch=False, url=own.url()).tasks["shop.note"].delay("job")
    url = own.url().replace(":right@", ":wrong@")
    one = worker(url=url, result_url=own.url(1), concurrency=1, ready=False)
    eventually(lambda: "invalid username-password pair" in one.log(), message="the log says it")
    assert Database(own.client()).waiting() == ["job"]
    worker(url=own.url(), result_url=own.url(1), concurrency=1)
    eventually(lambda: ledger.finishes() and ledger.runs() == {"job": 1})


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_read_only_replica_is_refused_by_name_until_it_is_promoted(
    worker, make_app, ledger, url, fresh_server, seed
):
    """Celery orders its steps by hash: kombu's own writes may come before our check."""
    primary: Server = fresh_server()
    replica: Server = fresh_server(replicaof=["127.0.0.1", str(primary.port)])
    make_app(superfetch=False, url=primary.url()).tasks["shop.note"].delay("job")
    there = Database(replica.client())
    eventually(lambda: there.length() == 1, message="the replica has it")
    place = {"url": replica.url(), "result_url": url, "env": {"PYTHONHASHSEED": seed}}
    one = worker(concurrency=1, ready=False, **place)
    one.wait_log(f"read-only replica of 127.0.0.1:{primary.port}")
    assert there.waiting() == ["job"]
    always(one.alive, during=2, message="it waits for a failover")
    assert one.log().count("Trying to re-establish the connection") < 50, "it asks in a hot loop"
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    eventually(lambda: ledger.finishes(), 60, message="a failover mends it")
    assert ledger.runs() == {"job": 1}


@pytest.mark.parametrize("prefix", ["", "{shop}:"])
@pytest.mark.parametrize("running", [False, True])
def test_a_replica_without_its_primary_is_waited_for(
    worker, make_app, ledger, url, fresh_server, prefix, running
):
    """It answers MASTERDOWN where it is to serve no stale data, as after a failover until it has
    the new primary's. It is no cluster, and a worker that ended would help nobody."""
    own: Server = fresh_server(replica_serve_stale_data="no")
    options = {"global_keyprefix": prefix}
    place = {"url": own.url(), "result_url": url, "options": options}
    one = worker(concurrency=1, **place) if running else None
    own.client().execute_command("REPLICAOF", "127.0.0.1", "1")
    one = one or worker(concurrency=1, ready=False, **place)
    one.wait_log("a replica that has lost its primary")
    always(one.alive, during=2, message="it waits for a failover")
    assert "cluster" not in one.log()
    own.client().execute_command("REPLICAOF", "NO", "ONE")
    make_app(url=own.url(), options=options).tasks["shop.note"].delay("job")
    eventually(lambda: ledger.finishes(), 60, message="a failover mends it")
    assert ledger.runs() == {"job": 1}


@pytest.mark.parametrize("at_start", [False, True])
def test_a_queue_key_of_another_type_is_named_and_the_other_queues_go_on(
    worker, shop, ledger, db, at_start
):
    """E3. At its start kombu itself asks for the queue's length, and the worker ended with that."""
    if at_start:
        db.client.set("broken", "precious")
    one = worker(concurrency=1, queues=["broken", "celery"])
    db.client.set("broken", "precious")
    for name in ("a", "b"):
        shop.note.delay(name)
        eventually(lambda name=name: ledger.finishes().get(name))
    one.wait_log("WRONGTYPE")
    assert "broken" in next(line for line in one.log().splitlines() if "WRONGTYPE" in line)
    assert "Traceback" not in one.log()
    assert db.client.get("broken") == b"precious"
    if not at_start:
        one.wait_log("No job can be claimed from a queue (queue=broken): WRONGTYPE")
        assert one.log().count("claimed from a queue (queue=broken)") == 1, "not repeated"
    db.client.delete("broken")
    shop.note.apply_async(("mended",), queue="broken")
    eventually(lambda: ledger.finishes().get("mended"), message="it is served once it is mended")
    assert ledger.runs() == {"a": 1, "b": 1, "mended": 1}


def test_an_acl_user_without_scripts_is_refused_by_name(worker, make_app, ledger, fresh_server):
    own: Server = fresh_server()
    rules = ["on", ">pw", "~*", "&*", "+@all", "-@scripting"]
    own.client().execute_command("ACL", "SETUSER", "shop", *rules)
    make_app(superfetch=False, url=own.url()).tasks["shop.note"].delay("job")
    place = {
        "url": f"redis://shop:pw@127.0.0.1:{own.port}/0",
        "result_url": own.url(1),
        "concurrency": 1,
    }
    one = worker(ready=False, **place)
    one.wait_log("the server's ACL forbids this user to run scripts")
    one.wait_log("Grant +@scripting")
    there = Database(own.client())
    assert there.waiting() == ["job"]
    own.client().execute_command("ACL", "SETUSER", "shop", "+@scripting")
    one.wait_exit()
    worker(**place)
    eventually(lambda: ledger.finishes())
    assert ledger.runs() == {"job": 1}
