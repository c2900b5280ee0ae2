"""`sentinel://` as stock kombu has it, by a real worker and by connections of our own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from traceback import format_exception
from typing import Any

import pytest
import redis

from celery_superfetch.app.broker import client_of
from celery_superfetch.console.probe import main
from celery_superfetch.errors import UnsupportedBroker
from celery_superfetch.owner.owner import Owner
from celery_superfetch.store.redis.clients import run_id
from celery_superfetch.store.redis.connections import Sentinels, following, place_of
from celery_superfetch.store.redis.server import check_server
from support.driver import Driver
from support.process import Process
from support.servers.database import Database
from support.servers.sentinel import NAME, Replicated, SentinelGroup
from support.servers.server import Server, free_port
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

SENTINEL = "celery_superfetch:SentinelTransport"
PASSWORD, SENTINEL_PASSWORD = "s3cret", "watchful"
OPTIONS: dict[str, Any] = {
    "master_name": NAME,
    "min_other_sentinels": 2,
    "sentinel_kwargs": {"password": SENTINEL_PASSWORD},
}


@pytest.fixture(scope="module")
def group() -> Iterator[SentinelGroup]:
    """Everything asks for a password: the servers for one, the Sentinels for another."""
    with SentinelGroup(
        about={"auth-pass": PASSWORD},
        sentinel_options={"requirepass": SENTINEL_PASSWORD},
        requirepass=PASSWORD,
        masterauth=PASSWORD,
    ) as made:
        yield made


def test_more_queues_than_blocking_reads(group):
    """The connection that is told of changes leads to the primary, too."""
    queues = [f"mail-{number}" for number in range(20)]
    with Inbox(urls(group, 6), *queues, transport=SENTINEL, **OPTIONS) as inbox:
        reads = inbox.channel.fetch.reads
        eventually(lambda: inbox.turn() or len(reads._tracker.empty) == 76)
        Bench(group.primary.client(6)).push(queues[-1], payload("last"))
        inbox.receive(1)


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    with Replicated() as pair:
        yield pair


def urls(group: SentinelGroup, db: int) -> str:
    return group.sentinel_url(db).replace("sentinel://", f"sentinel://:{PASSWORD}@")


def test_a_worker_is_led_by_any_sentinel_that_answers(worker, make_app, group, url):
    """Passwords, a database number, and a first Sentinel that is gone."""
    broker = f"sentinel://:{PASSWORD}@127.0.0.1:{free_port()}/3;{urls(group, 3)}"
    settings = {"url": broker, "result_url": url, "conf": {"broker_transport_options": OPTIONS}}
    one: Process = worker(pool="threads", concurrency=1, **settings)
    app = make_app(**{**settings, "url": urls(group, 3)})
    assert app.tasks["shop.add"].delay(2, 3).get(timeout=30) == 5
    there = Database(group.primary.client(3))
    assert len(there.owners()) == 1, "the job was not fetched by our transport"
    with client_of(app) as client:
        assert client.info("replication")["role"] == "master"
        assert client.zcard("superfetch:owners") == 1
    one.stop()
    assert there.owners() == []


def test_a_worker_without_the_name_of_the_primary_says_so_and_ends(worker, group, url):
    one = worker(concurrency=1, url=urls(group, 0), result_url=url, ready=False)
    one.wait_log("set 'master_name' in broker_transport_options")
    assert one.wait_exit() != 0


def test_a_sentinel_named_as_if_it_were_a_server_is_refused_by_name(group):
    sentinel = group.sentinels[0].client()
    with pytest.raises(UnsupportedBroker, match="sentinel://"):
        check_server(sentinel)


def test_connections_of_our_own_have_all_that_kombus_have(make_app, group):
    options = {**OPTIONS, "socket_timeout": 7}
    app = make_app(url=urls(group, 2), conf={"broker_transport_options": options})
    with client_of(app) as client:
        assert client.client_info()["db"] == 2
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 7


def test_too_few_sentinels_know_no_primary(make_app, group):
    options = {**OPTIONS, "min_other_sentinels": 3}
    app = make_app(url=urls(group, 0), conf={"broker_transport_options": options})
    with pytest.raises(redis.exceptions.ConnectionError, match="No master found"):
        client_of(app)


def test_no_error_shows_the_password_of_the_sentinels(make_app, monkeypatch):
    """E4. redis-py before 8 puts it into its error: workers logged it, commands printed it."""
    monkeypatch.setattr(redis.ConnectionPool, "SENSITIVE_REPR_KEYS", frozenset(), raising=False)
    broker = f"sentinel://127.0.0.1:{free_port()}/0"
    app = make_app(url=broker, conf={"broker_transport_options": OPTIONS})
    sentinels = Sentinels(
        NAME, (("127.0.0.1", free_port()),), options={"password": SENTINEL_PASSWORD}
    )
    for ask in (lambda: client_of(app), sentinels.get_master_address):
        with pytest.raises(redis.exceptions.ConnectionError, match="No master found") as caught:
            ask()
        assert SENTINEL_PASSWORD not in "".join(format_exception(caught.value))
        assert re.match(r"No master found for '\w+' : 127\.0\.0\.1:\d+ - [^<]*$", str(caught.value))


def test_a_probe_is_led_to_the_primary_and_its_database():
    """By Sentinels without a password: it has no option for theirs."""
    group = SentinelGroup(about={"auth-pass": PASSWORD}, requirepass=PASSWORD, masterauth=PASSWORD)
    with group:
        Bench(group.primary.client(4)).owner(node="celery@there")
        words = ["--broker", urls(group, 4), "--master", NAME, "--node", "celery@there"]
        assert main(words) == 0
        assert main([*words, "--broker", urls(group, 5)]) == 2


def test_a_group_is_one_database_in_whatever_order_it_is_named():
    def place(name: str, *ports: int) -> object:
        asked = tuple(("127.0.0.1", port) for port in ports)
        return place_of({"connection_pool": Sentinels(name, asked), "db": 0})

    assert place("shop", 1, 2, 3) == place("shop", 3, 1, 2)
    assert place("shop", 1, 2, 3) != place("mail", 1, 2, 3)
    assert place("shop", 1, 2, 3) != place("shop", 4, 5, 6)


@pytest.mark.parametrize("known", [True, False], ids=["the same run", "unknown"])
def test_a_heart_that_connects_anew_doubts_what_it_was_told(fresh_server, bench, known):
    """A restart or a failover may have undone acks and claims that were confirmed: unless the
    server says that it is the same run, and nobody names another in its place."""
    own = fresh_server()
    rules = ["on", ">pw", "~*", "&*", "+@all", *([] if known else ["-info"])]
    own.client().execute_command("ACL", "SETUSER", "shop", *rules)
    params = redis.connection.parse_url(f"redis://shop:pw@127.0.0.1:{own.port}/0")
    membership = Owner(params, bench.config)
    membership.join(1, {"mail": 0})
    membership.heartbeat()
    assert not Driver.of(membership).needs_reconcile
    heart = membership.heartbeat_session.registry.client.connection
    assert heart is not None
    heart.disconnect()
    membership.heartbeat()
    assert Driver.of(membership).needs_reconcile != known
    membership.leave_for_good()


class Named:
    """Stands for Sentinels: whom they name is up to the test."""

    is_master, check_connection = True, False

    def __init__(self, server: Server) -> None:
        self.server = server

    def get_master_address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port


@pytest.mark.parametrize("first", ["the heart", "the others"])
def test_connections_of_one_process_never_disagree_on_the_run_of_the_server(
    bench, replicated, first
):
    """Two servers are primaries: whoever is led to the other one takes all along."""
    before, after = replicated.servers
    named = Named(before)
    params = {
        "connection_class": following(redis.sentinel.SentinelManagedConnection),
        "connection_pool": named,
        "socket_timeout": 5,
    }
    membership = Owner(params, bench.config)
    membership.join(1, {"mail": 0})
    owner, heart = membership.name, membership.heartbeat_session
    assert run_id(membership.client) == heart.record.run_id
    replicated.wait_in_step()
    replicated.promote()
    for server in (after, before):
        named.server = server
        led = heart.registry.client if first == "the heart" else membership.client
        led.connection_pool.disconnect()
        if first == "the heart":
            membership.heartbeat()
            with pytest.raises(redis.exceptions.ConnectionError, match="another primary"):
                run_id(membership.client)
            assert Driver.of(membership).needs_reconcile
        there = str(server.client().info("server")["run_id"])
        assert run_id(membership.client) == there, "others are refused until the heart has come"
        eventually(lambda there=there: heart.record.run_id == there)
    assert membership.name == owner
    membership.leave_for_good()


def test_an_owner_goes_on_at_the_replica_and_at_no_other_server(
    fresh_server, make_bench, replicated
):
    """A stranger, and a copy of long ago, are not taken for the server's successor."""
    pair, stranger = replicated, fresh_server()
    primary, replica = pair.servers
    params = [{"host": "127.0.0.1", "port": one.port} for one in (primary, stranger, replica)]
    config = make_bench(heartbeat_interval=600, owner_ttl=6000).config
    membership = Owner(params[0], config, params)
    membership.join(1, {"mail": 0})
    owner = membership.name
    eventually(lambda: replica.client().zscore("superfetch:owners", owner))
    stranger.client().zadd("superfetch:owners", {owner: 1})
    assert not membership.follow({**params[1], "db": 1}), "it knows nobody there"
    primary.kill()
    for _ in range(2):
        with pytest.raises(redis.exceptions.ConnectionError):
            membership.heartbeat()
        assert membership.heartbeat_session.params["port"] == primary.port, (
            "nobody has been promoted"
        )
    pair.promote()
    with pytest.raises(redis.exceptions.ConnectionError):
        membership.heartbeat()
    assert membership.heartbeat_session.params["port"] == replica.port
    assert membership.heartbeat().status == "ok"
    assert membership.name == owner
    assert Driver.of(membership).needs_reconcile, "what is in flight has to be compared"
    membership.leave_for_good()
