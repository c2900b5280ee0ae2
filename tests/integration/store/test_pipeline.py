"""The connection of a pipeline: when it is used, given back, checked and closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, time
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from celery_superfetch.store.redis.call import Call
from celery_superfetch.store.redis.pipeline import (
    CHECKOUT,
    IDLE_S,
    Command,
    Pipeline,
    asked,
    no_report,
)
from support.servers.commands import calls
from support.waiting import eventually
from support.workers.bench import Bench, payload

TOO_LONG = b"x" * (1024 * 1024 + 1)


@pytest.fixture
def own(url: str) -> Iterator[redis.Redis]:
    """A client with a pool of its own."""
    client = redis.Redis.from_url(url)
    yield client
    client.close()


@pytest.fixture
def pipeline(own: redis.Redis) -> Pipeline:
    return Pipeline(Bench(own).scripts)


class Sent:
    """Commands, and what was reported of each: its reply, that it was lost, or was never sent."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def command(self, name: str, *args: Any) -> Command:
        call = Call(name, [], args, is_plain=True)

        def on_lost(was_sent: bool) -> None:
            self.reports.append("lost" if was_sent else "not sent")

        return Command(call, self.reports.append, on_lost)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def idle_connections(client: redis.Redis) -> list[Any]:
    return [*client.connection_pool._available_connections]


def is_late(began: float) -> bool:
    """Return whether the test was held up, so that the connection may count as idle."""
    return monotonic() >= began + IDLE_S


def is_open(connection: Any) -> bool:
    return connection._sock is not None


def test_a_connection_is_used_again_and_given_back_when_it_is_idle(own, pipeline, sent):
    began = monotonic()
    pipeline.send([sent.command("ECHO", "a")])
    assert not pipeline.is_idle or is_late(began)
    [used] = own.connection_pool._in_use_connections
    pipeline.send([sent.command("ECHO", "b")], wait=False)
    assert own.connection_pool._in_use_connections == {used}
    assert pipeline.has_unread
    assert not pipeline.has_late_replies or is_late(began)
    eventually(lambda: pipeline.has_late_replies, IDLE_S + 10)
    assert not pipeline.is_idle, "its reply is to be read"
    began = monotonic()
    pipeline.send([], wait=False)
    assert sent.reports == [b"a", b"b"]
    assert not pipeline.has_unread
    assert not pipeline.has_late_replies
    assert not pipeline.is_idle or is_late(began)
    eventually(lambda: pipeline.is_idle, IDLE_S + 10)
    pipeline.release()
    assert not pipeline.is_idle, "there is none"
    assert idle_connections(own) == [used]
    pipeline.release()
    assert idle_connections(own) == [used], "it is given back once"


def test_a_first_send_opens_one_connection(own, sent):
    """It asks first how the server takes scripts. Asked in the middle of the send, that would take
    a second connection, and a pool may be full."""
    bench = Bench(own)
    call = bench.lists.put_notes_back("nobody's", ["1"])
    Pipeline(bench.scripts).send([Command(call, sent.reports.append, no_report)], wait=False)
    assert len(own.connection_pool._in_use_connections) == 1
    assert idle_connections(own) == []


def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(own, pipeline, sent):
    pipeline.send([sent.command("CLIENT", "ID")])
    own.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: pipeline.is_idle, IDLE_S + 10)
    pipeline.send([sent.command("ECHO", "a")])
    assert sent.reports[1:] == [b"a"]


def test_the_control_one_that_was_used_a_moment_ago_is_not_checked(own, pipeline, sent):
    pipeline.send([sent.command("CLIENT", "ID")])
    own.client_kill_filter(_type="normal", skipme=True)
    if not pipeline.is_idle:
        with pytest.raises((RedisConnectionError, OSError)):
            pipeline.send([sent.command("ECHO", "a")])
        assert sent.reports[1:] == ["lost"]


def test_what_a_lost_connection_owed_is_reported_once(own, pipeline, sent):
    for word in "ab":
        pipeline.send([sent.command("ECHO", word)], wait=False, leave=16)
    [used] = own.connection_pool._in_use_connections
    pipeline.drop()
    pipeline.drop()
    assert sent.reports == ["lost", "lost"]
    assert idle_connections(own) == [used]
    assert not is_open(used), "what it still owed would be taken for replies to others"


def test_a_command_for_which_no_connection_could_be_opened_was_not_sent(fresh_server, sent):
    server = fresh_server()
    pipeline = Pipeline(Bench(server.client()).scripts)
    pipeline.send([sent.command("ECHO", "a")])
    pipeline.release()
    server.stop()
    with pytest.raises(RedisConnectionError):
        pipeline.send([sent.command("ECHO", "b"), sent.command("ECHO", "c")])
    assert sent.reports[1:] == ["not sent", "not sent"]


def test_replies_of_a_server_that_was_left_are_lost(own, pipeline, sent, url):
    pipeline.send([sent.command("ECHO", "a")], wait=False)
    old, own.connection_pool = own.connection_pool, redis.Redis.from_url(url).connection_pool
    with pytest.raises(RedisConnectionError, match="before its replies were read"):
        pipeline.send([sent.command("ECHO", "b")])
    assert sent.reports == ["lost", "not sent"]
    assert not old._in_use_connections, "each goes back to the pool that it is from"
    pipeline.send([sent.command("ECHO", "c")])
    assert sent.reports[2:] == [b"c"]
    assert own.connection_pool._in_use_connections


def test_a_connection_to_a_server_that_was_left_is_used_no_more(own, pipeline, sent, url):
    pipeline.send([sent.command("ECHO", "a")])
    old, own.connection_pool = own.connection_pool, redis.Redis.from_url(url).connection_pool
    pipeline.send([sent.command("ECHO", "b")])
    assert not old._in_use_connections
    assert own.connection_pool._in_use_connections
    old.disconnect()


def test_a_client_of_one_connection_keeps_it(url, sent):
    client = redis.Redis.from_url(url, single_connection_client=True)
    pipeline = Pipeline(Bench(client).scripts)
    number = client.client_id()
    pipeline.send([sent.command("CLIENT", "ID")])
    pipeline.release()
    assert sent.reports == [number]
    assert not idle_connections(client), "no other may get it"
    assert client.client_id() == number
    client.close()


def test_a_connection_that_the_server_is_about_to_close_is_closed(fresh_server, sent):
    """It answers first: the next user would be told that it was reset, or not, as it happens."""
    own = fresh_server().client()
    pipeline = Pipeline(Bench(own).scripts)
    own.config_set("proto-max-bulk-len", 1024 * 1024)
    pipeline.send([sent.command("ECHO", "a")])

    def is_answered() -> bool:
        """Return whether the answer came; if not, the server closed the connection before."""
        [used] = own.connection_pool._in_use_connections
        with suppress(RedisConnectionError):
            pipeline.send([sent.command("ECHO", "b"), sent.command("LPUSH", "x", TOO_LONG)])
        assert not is_open(used)
        *_, last = sent.reports
        pipeline.send([sent.command("ECHO", "c")])
        assert sent.reports[-1] == b"c"
        return isinstance(last, ResponseError)

    eventually(is_answered)


def test_the_control_another_error_leaves_it_open(own, pipeline, sent):
    pipeline.send([sent.command("INCR", "a", "b"), sent.command("ECHO", "Protocol error")])
    assert sent.reports[1:] == [b"Protocol error"]
    [used] = own.connection_pool._in_use_connections
    assert is_open(used)


def test_replies_are_left_for_a_second_at_most(pipeline, sent):
    began = monotonic()
    for word in "ab":
        pipeline.send([sent.command("ECHO", word)], wait=False, leave=16)
    assert sent.reports == [] or is_late(began)
    eventually(lambda: pipeline.has_late_replies, IDLE_S + 10)
    began = monotonic()
    pipeline.send([sent.command("ECHO", "c")], wait=False, leave=16)
    assert sent.reports == [b"a", b"b"]
    pipeline.send([sent.command("ECHO", "d")], wait=False, leave=16)
    assert sent.reports == [b"a", b"b"] or is_late(began), "and the next ones are left again"


def test_a_forgotten_script_is_sent_whole_once_in_a_batch(fresh_server):
    """The first of each brings its text; each gets the reply to its own."""
    own = fresh_server().client()
    bench = Bench(own)
    jobs = [
        bench.lists.requeue([job], "front", 0)._replace(whole=False)
        for job in bench.give(bench.owner().owner, "mail", [payload(1), payload(2)])
    ]
    held = bench.lists.put_notes_back("nobody's", ["1"])
    bench.scripts.run_all([jobs[0]._replace(whole=True), held._replace(whole=True)])
    own.script_flush()
    before = own.info("stats")["total_net_input_bytes"]
    replies: list[Any] = []
    Pipeline(bench.scripts).send(
        [Command(call, replies.append, no_report) for call in (jobs[1], held, jobs[0], held)]
    )
    assert not any(isinstance(reply, NoScriptError) for reply in replies)
    assert [*map(str, replies)] == ["[]", "None", "[1]", "None"]
    sent_bytes = own.info("stats")["total_net_input_bytes"] - before
    size = len(bench.scripts._source("requeue")) + len(bench.scripts._source("wait"))
    assert size < sent_bytes < 2 * size


def test_a_forgotten_script_that_is_refused_is_a_reply_like_others(fresh_server):
    own = fresh_server().client()
    bench = Bench(own)
    own.set(bench.keys.private("wrong"), "a text")
    replies: list[Any] = []
    Pipeline(bench.scripts).send(
        [
            Command(bench.lists.put_notes_back(owner, ["1"]), replies.append, no_report)
            for owner in ("wrong", "nobody's")
        ]
    )
    refused, accepted = replies
    assert "WRONGTYPE" in str(refused)
    assert accepted is None


def test_a_question_is_asked_without_a_health_check(url, own):
    """That would be one more round trip."""
    client = redis.Redis.from_url(url, health_check_interval=0.01)
    connection = client.connection_pool.get_connection(*CHECKOUT)
    # redis-py before 6 reckons it by the clock of the day.
    clock = time if connection.next_health_check > 10**9 else monotonic
    eventually(lambda: connection.next_health_check < clock())
    before = calls(own, "ping")
    assert asked(connection, ["ECHO", "a"], ["ECHO", "b"]) == [b"a", b"b"]
    assert calls(own, "ping") == before
    client.connection_pool.release(connection)
    client.close()
