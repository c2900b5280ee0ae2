"""What becomes of a call while its server stands still, changes, or has lost its bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from celery_superfetch.app.broker import client_of
from celery_superfetch.store.redis import connections
from celery_superfetch.store.redis.scripts import source
from support.servers.faults import command, script, standstill
from support.servers.sentinel import NAME, Replicated, SentinelGroup
from support.waiting import always, eventually
from support.workers.bench import Bench
from support.workers.load import Load

TAG = {"global_keyprefix": "{shop}:"}
NAMED = {"master_name": NAME}


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as made:
        yield made


@pytest.fixture
def app_at(make_app: Any, url: str) -> Callable[..., Celery]:
    """`app_at("redis://...", socket_timeout=5)`: an app whose results are elsewhere."""

    def make(where: str, **options: Any) -> Celery:
        conf = {"broker_transport_options": options}
        app: Celery = make_app(url=where, result_url=url, conf=conf)
        return app

    return make


# -- the server stands still


@pytest.mark.parametrize(("options", "once"), [({}, True), ({"socket_timeout": 0.5}, False)])
def test_a_call_waits_for_a_server_that_stands_still_and_is_sent_once(
    app_at, fresh_server, monkeypatch, options, once
):
    """C1. The control: a limit that the user set holds for calls, too, as in stock."""
    monkeypatch.setattr(connections, "REPLY_TIMEOUT_S", 0.5)
    server = fresh_server()
    note = app_at(server.url(), **options).tasks["shop.note"]
    note.delay("connected")
    with ThreadPoolExecutor() as threads:
        with standstill(server):
            call = threads.submit(note.delay, "standstill")
            always(lambda: not (once and call.done()), during=1.5)
        call.exception(30)
    sent = [raw for raw in Bench(server.client()).queue("celery") if b"standstill" in raw]
    assert (len(sent) == 1) == once


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_task_sends_while_the_server_stands_still_is_sent_once(
    worker, app_at, fresh_server, ledger, url, pool
):
    """C1. Our limit of 15 s held for what a worker's jobs send, too."""
    server = fresh_server()
    worker(pool=pool, concurrency=1, url=server.url(), result_url=url)
    app = app_at(server.url())
    hold, note = app.tasks["shop.hold"], app.tasks["shop.note"]
    (note.si("connected") | hold.si("first") | note.si("second")).delay()
    eventually(lambda: "first" in ledger.starts())
    with standstill(server):
        ledger.release("first")
        eventually(lambda: "first" in ledger.finishes())
        always(lambda: "second" not in ledger.starts(), during=18)
    eventually(lambda: "second" in ledger.finishes())
    note.delay("last")
    eventually(lambda: "last" in ledger.finishes())
    assert ledger.runs() == dict.fromkeys(("connected", "first", "second", "last"), 1)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_step_whose_reply_never_comes_is_sent_again_and_runs_once(
    worker, app, ledger, proxy, db, carried_out
):
    """The job stayed in its slot until its worker ended."""
    where = {"url": proxy.url(), "result_url": app.conf.broker_url}
    worker(app="hung", pool="prefork", concurrency=1, env={"REPLY_TIMEOUT": "1"}, **where)
    hold, note = app.tasks["shop.hold"], app.tasks["shop.note"]
    (note.si("connected") | hold.si("first") | note.si("second")).delay()
    eventually(lambda: "first" in ledger.starts())
    held = proxy.hold_at(script(source("step")), carried_out=carried_out)
    ledger.release("first")
    eventually(held.is_set)
    eventually(lambda: "second" in ledger.finishes(), 30)
    eventually(db.settled)
    assert ledger.runs() == dict.fromkeys(("connected", "first", "second"), 1)


def test_a_call_that_asks_for_the_queues_in_vain_asks_again(app_at, proxy, bench, monkeypatch):
    """Nothing is sent yet."""
    monkeypatch.setattr(connections, "REPLY_TIMEOUT_S", 0.5)
    app = app_at(proxy.url())
    app.conf.task_queues = [Queue("pack", OPS, routing_key="pack.#")]
    held = proxy.hold_at(command("SMEMBERS"), nth=2, carried_out=True)
    to = {"exchange": OPS.name, "routing_key": "pack.#", "queue": "pack"}
    with ThreadPoolExecutor() as threads:
        for job in ("connected", "job"):
            call = threads.submit(app.tasks["shop.note"].apply_async, (job,), **to)
            try:
                call.result(10)
            finally:
                proxy.cut()  # what waits for ever ends, too
    assert held.is_set()
    assert len(bench.queue("pack")) == 2


def test_whatever_else_is_asked_has_its_limit(app_at, fresh_server, monkeypatch):
    """C1. After a call on the same connection, and on those by which workers claim."""
    monkeypatch.setattr(connections, "REPLY_TIMEOUT_S", 0.5)
    server = fresh_server()
    app = app_at(server.url())
    with app.connection_for_write() as connection, client_of(app) as client:
        app.tasks["shop.note"].apply_async(("job",), connection=connection)
        client.ping()
        with standstill(server):
            for ask in (lambda: connection.default_channel._size("celery"), client.ping):
                with pytest.raises(connections.RedisTimeout):
                    ask()


# -- its primary is another


def test_behind_sentinels_a_planned_failover_fails_no_call(app_at, group, ledger):
    """B4. The Sentinels name the old primary for a while; after a plain FAILOVER for long."""
    with Load(app_at(group.sentinel_url(), **NAMED), ledger, every=0.01, retry=True) as load:
        for way in (SentinelGroup.failover, Replicated.failover):
            eventually(lambda: len(load.published) > 5)
            way(group)
            load.published.clear()
        eventually(lambda: len(load.published) > 20)
    assert not load.in_doubt


def test_a_first_call_behind_sentinels_waits_for_the_election(app_at, group):
    """B3. It raised after 4 s, or at once; one of a connected process waits."""
    group.kill_primary()
    app_at(group.sentinel_url(), **NAMED).tasks["shop.note"].delay("job")
    assert len(Bench(group.promote().client()).queue("celery")) == 1


def test_a_first_call_on_a_cluster_waits_for_the_election(app_at, nodes):
    """B3. The election takes longer than the 4 s that Celery gives a connection."""
    home = nodes.home(TAG["global_keyprefix"])
    for node in nodes.living:
        node.client().config_set("cluster-node-timeout", 5_000)
    home.kill()
    where = ";".join(node.url() for node in nodes.nodes)
    app_at(where, **TAG).tasks["shop.note"].delay("job")
    assert nodes.client().llen("{shop}:celery") == 1


def test_a_first_call_goes_on_to_whoever_is_named_behind_one_that_stands_still(app_at, nodes):
    """B3. The silent one has the whole limit; Celery's 4 s were over by then."""
    home = nodes.home(TAG["global_keyprefix"])
    silent = next(node for node in nodes.nodes if node is not home)
    app = app_at(f"{silent.url()};{home.url()}", socket_timeout=5, **TAG)
    with standstill(silent):
        app.tasks["shop.note"].delay("job")
    assert nodes.client().llen("{shop}:celery") == 1


# -- its exchange has lost its queues

OPS = Exchange("ops", type="topic")


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("kind", ["topic", "direct"])
def test_a_task_whose_binding_is_gone_is_sent_all_the_same(
    app_at, url, bench, caplog, protocol, kind
):
    """C2. 3 of 3 were lost without a word, as in stock."""
    app = app_at(url)
    exchange = Exchange(f"ops-{kind}", type=kind)
    app.conf.task_protocol = protocol
    app.conf.task_queues = [Queue("pack", exchange, routing_key="pack.#")]
    to = {"exchange": exchange.name, "routing_key": "pack.#", "queue": "pack"}
    for gone in ("", "flushed"):
        if gone:
            bench.client.flushdb()
        app.tasks["shop.note"].apply_async(("job",), **to)
        assert len(bench.queue("pack")) == 1
    assert "and were declared again" in caplog.text


def test_that_the_server_is_full_is_said_to_whom_it_refuses_the_binding(app_at, fresh_server):
    """By it alone: no queue is missing here."""
    own = fresh_server()
    app = app_at(own.url())
    app.conf.task_queues = [Queue("pack", OPS, routing_key="pack.#")]
    to = {"exchange": OPS.name, "routing_key": "pack.#", "queue": "pack"}
    app.tasks["shop.note"].apply_async(("job",), **to)
    own.client().flushall()
    own.client().config_set("maxmemory", "1mb")
    with pytest.raises(OperationalError, match="used memory > 'maxmemory'"):
        app.tasks["shop.note"].apply_async(("job",), **to)


def test_a_task_that_no_queue_takes_is_an_error_that_names_it(app_at, url):
    app = app_at(url)
    app.conf.task_queues = [Queue("pack", OPS, routing_key="pack.#")]
    note = app.tasks["shop.note"]
    to = {"queue": "pack", "exchange": "ops", "routing_key": "ship.today", "task_id": "the-one"}
    with pytest.raises(OperationalError, match=r"task the-one .*'ops' by routing key 'ship.today'"):
        note.apply_async(("job",), **to)


def test_what_is_no_task_goes_nowhere_without_a_word_as_in_stock(app_at, url):
    """A reply to a command whose asker has gone, say."""
    app = app_at(url)
    with app.producer_or_acquire() as producer:
        producer.publish({"ok": "pong"}, exchange=Exchange("replies"), routing_key="gone")
