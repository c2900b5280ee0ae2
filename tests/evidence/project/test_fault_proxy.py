"""The proxy's faults, shown with a plain client: the tests that use it rely on each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import redis

from support.servers.faults import command, kill_connections, script
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import always, eventually


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as own:
        yield own


@pytest.fixture
def direct(server: Server) -> redis.Redis:
    client = server.client()
    client.flushall()
    return client


@pytest.fixture
def proxy(server: Server, direct: redis.Redis) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as own:
        yield own


@pytest.fixture
def far(proxy: FaultProxy) -> Iterator[Callable[..., redis.Redis]]:
    """A client that goes through the proxy, without redis-py's own second tries."""
    with contextlib.ExitStack() as opened:

        def make(**options: object) -> redis.Redis:
            pool = redis.ConnectionPool(host="127.0.0.1", port=proxy.port, **options)
            return opened.enter_context(
                redis.Redis(connection_pool=pool, single_connection_client=True)
            )

        yield make


def test_a_cut_before_a_command_means_it_never_arrived(proxy, far, direct):
    client = far()
    done = proxy.cut_at(command("LPUSH"), nth=2, reply_lost=False)
    client.lpush("list", "one")
    assert not done.is_set()
    with pytest.raises(redis.ConnectionError):
        client.lpush("list", "two")
    assert done.is_set()
    assert direct.lrange("list", 0, -1) == [b"one"]
    client.lpush("list", "three")
    assert direct.llen("list") == 2, "one cut, once"


def test_a_cut_after_a_command_means_it_was_carried_out(proxy, far, direct):
    client = far()
    text = "return redis.call('INCR', KEYS[1])"
    digest = client.script_load(text)
    done = proxy.cut_at(script(text), reply_lost=True)
    with pytest.raises(redis.ConnectionError):
        client.evalsha(digest, 1, "count")
    assert done.is_set()
    assert direct.get("count") == b"1"


def test_a_blocking_read_is_cut_when_it_has_claimed(proxy, far, direct):
    client = far()
    done = proxy.cut_at(command("BLMOVE"), reply_lost=True)
    client.connection.send_command("BLMOVE", "from", "to", "RIGHT", "LEFT", 20)
    always(lambda: not done.is_set(), during=0.2)
    direct.lpush("from", "job")
    with pytest.raises(redis.ConnectionError):
        client.connection.read_response()
    assert direct.lrange("to", 0, -1) == [b"job"]


def test_in_a_black_hole_everything_vanishes_and_new_connections_work(proxy, far, direct):
    old, blocked = far(socket_timeout=0.3), far(socket_timeout=0.3)
    old.ping()
    blocked.connection.send_command("BLMOVE", "from", "to", "RIGHT", "LEFT", 20)
    eventually(lambda: direct.info("clients")["blocked_clients"] == 1)
    assert proxy.black_hole() == 2
    with pytest.raises(redis.TimeoutError):
        old.set("a", 1)
    blocked.connection.disconnect()
    direct.lpush("from", "job")
    eventually(lambda: direct.lrange("to", 0, -1) == [b"job"], message="nobody told the server")
    assert not direct.exists("a")
    old.set("b", 1)  # its next connection
    proxy.heal()
    assert direct.exists("b")


def test_refused_stalled_and_healed(proxy, far):
    client = far(socket_timeout=0.5)
    client.ping()
    proxy.refuse()
    client.ping()
    with pytest.raises(redis.ConnectionError, match="refused"):
        far().ping()
    proxy.stall()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    proxy.heal()
    far().ping()


def test_what_was_stalled_is_not_lost(proxy, far, direct):
    client = far()
    client.ping()
    proxy.stall()
    client.connection.send_command("SET", "a", 1)
    always(lambda: not direct.exists("a"), during=0.2)
    proxy.heal()
    assert client.connection.read_response() == b"OK"


def test_every_connection_is_reset_at_once(proxy, far, direct):
    clients = [far() for _ in range(3)]
    for client in clients:
        client.ping()
    assert proxy.cut() == 3
    for client in clients:
        with pytest.raises(redis.ConnectionError):
            client.ping()
    listener = direct.pubsub()
    listener.subscribe("news")
    assert kill_connections(direct) >= 1
