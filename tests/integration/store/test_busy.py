"""A script of another program runs for too long, so that the server answers BUSY to each command:
that passes, and nothing that is learned meanwhile is remembered."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
import redis
from redis import Connection

from celery_superfetch.migration.stock_unacked import Unacked
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.keyspace import Keyspace
from celery_superfetch.store.redis.clients import known_as, run_id, unblock
from celery_superfetch.store.redis.connections import following
from celery_superfetch.store.redis.refusals import refusals
from celery_superfetch.store.redis.server import as_connection_error, check_server, first_line
from support.servers.faults import busy
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox


@pytest.fixture
def server(fresh_server):
    return fresh_server()


def test_a_busy_server_is_not_taken_for_one_without_scripts(server):
    """A worker that started then ended, as on a server that runs no scripts."""
    client = server.client()
    with busy(server):
        for check in (check_server, first_line, run_id):
            with pytest.raises(redis.ResponseError, match="BUSY"):
                check(client)
        with pytest.raises(redis.ConnectionError), as_connection_error():
            check_server(client)
    check_server(client)
    assert run_id(client)


def test_the_id_of_a_connection_is_asked_for_again(server):
    """It counted as unknown for as long as the connection was open: the owner record named no
    connection and no run of the server."""
    client = server.client(single_connection_client=True)
    connection = client.connection
    connection.connect()
    with busy(server), pytest.raises(redis.ResponseError, match="BUSY"):
        known_as(connection)
    client.ping()
    assert known_as(connection) == (client.client_id(), run_id(client))


def test_what_a_busy_server_refuses_is_not_forbidden(server):
    """`doctor` named each command."""
    client = server.client()
    with busy(server):
        assert refusals(client, "never", ["llen K", "client|id"], ["mail"]) == []


def test_a_read_that_a_busy_server_does_not_end_is_ended_soon_after(server):
    """For 600 s none was."""
    with Inbox(server.url()).settle_in() as inbox:
        reads = inbox.channel.fetch.reads
        armed = reads.armed
        assert armed
        with busy(server):
            with pytest.raises(redis.ResponseError, match="BUSY"):
                unblock(inbox.channel.owner.client, armed)
            reads.call_off(armed)
            assert reads._unblock_refused_until < monotonic() + 5
        assert inbox.channel.owner.name


def test_a_consumer_waits_for_a_busy_server_and_blames_no_queue(server, caplog):
    with Inbox(server.url()).settle_in() as inbox:
        with busy(server):
            for read in inbox.channel.fetch.reads.armed:
                inbox.channel.fetch.reads.close([read])
            for _ in range(60):
                inbox.turn(0.05)
        server.client().lpush("mail", payload(1))
        inbox.receive(1)
        inbox.ack_all()
    assert "rename the key or the queue" not in caplog.text


#: The answer that each gave of a busy server: the ACL forbids it, there is none, the key has
#: another type.
QUESTIONS: dict[str, Callable[[Bench, OwnerRecord], object]] = {
    "connections of an owner": lambda it, of: it.registry.connected(of, of.run_id),
    "may list connections": lambda it, _: it.registry.reports_connections(),
    "owner records": lambda it, of: it.registry.records([of.owner])[of.owner].node,
    "stock consumers": lambda it, _: Unacked(it.database).consumers() == [],
    "unacked jobs": lambda it, _: Unacked(it.database).size(),
    "scheduled jobs": lambda it, _: it.parked.readable_sizes(["mail"]),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_busy_server_does_not_say_counts_as_nothing_else(server, name):
    bench = Bench(server.client())
    connections = (bench.client.client_id(),)
    owner = bench.owner(
        lists=["mail"], node="w1", connections=connections, run_id=run_id(bench.client)
    )
    bench.give(owner, "mail", [payload(1)])
    bench.client.hset(Unacked(bench.database).name, "tag", "value")
    with busy(server), pytest.raises(redis.ResponseError, match="BUSY"):
        QUESTIONS[name](bench, owner)
    assert QUESTIONS[name](bench, owner), "the control"


def test_a_server_that_gets_busy_after_a_scan_has_jobs_left(server, monkeypatch):
    """`rollback` counted none, and ended well."""
    bench = Bench(server.client())
    bench.give(bench.owner(), "mail", [payload(1)])
    at_once = Keyspace._at_once

    def while_busy(*args: Any, **options: Any) -> Any:
        with busy(server):
            return at_once(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Keyspace, "_at_once", while_busy)
        with pytest.raises(redis.ResponseError, match="BUSY"):
            Keyspace(bench.database).left()
    assert Keyspace(bench.database).left()[0].total() == 1, "the control"


def test_a_busy_server_is_not_connected_to_as_a_primary(server):
    """Whether it is a replica was not asked again for as long as the connection was open."""
    connection = following(Connection)(host="127.0.0.1", port=server.port)
    with busy(server), pytest.raises(redis.ResponseError, match="BUSY"):
        connection.connect()
    connection.connect()  # the control
    connection.disconnect()
