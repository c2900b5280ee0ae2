"""Connections of strangers: none is cut or unblocked for an id in a record, or for one that another
proxy has given away. The server has to list it under this package's name, user and database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from celery_superfetch.store.redis import clients
from celery_superfetch.store.redis.clients import cut, run_id, unblock
from celery_superfetch.store.redis.connections import LIBRARY_NAME, with_client_defaults
from celery_superfetch.transport.fetch.blocking_reads import BlockingRead
from support.servers.commands import calls
from support.servers.server import Server
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere
from support.workers.inbox import Inbox

STRANGERS = {
    "another library": {},
    "another user": {**with_client_defaults({}), "username": "other", "password": "other"},
    "another database": {**with_client_defaults({}), "db": 5},
}


def dead_owner(bench: Bench, *ids: int) -> None:
    """Forge a record of an owner that hung, with connections of the writer's choice."""
    run = run_id(bench.client)
    bench.owner(elsewhere(), connections=ids, run_id=run, state="hung")


@pytest.fixture
def others(fresh_server: Callable[..., Server]) -> Iterator[tuple[Bench, dict[str, redis.Redis]]]:
    """A database, and clients of its server that a worker must not cut off."""
    server = fresh_server()
    admin = server.client()
    admin.execute_command("ACL", "SETUSER", "other", "on", ">other", "~*", "&*", "+@all")
    port = server.port
    made = {
        kind: redis.Redis(port=port, single_connection_client=True, **options)
        for kind, options in STRANGERS.items()
    }
    yield Bench(admin), made
    for client in made.values():
        client.close()


def ids_of(client: redis.Redis) -> set[int]:
    return {int(row["id"]) for row in client.client_list()}


def test_a_forged_record_of_a_dead_owner_has_no_stranger_cut(others):
    """A reaper with CLIENT KILL cut them for a writer of the database who may not."""
    bench, clients_of = others
    ids = {kind: client.client_id() for kind, client in clients_of.items()}
    with redis.Redis(
        port=bench.client.connection_pool.connection_kwargs["port"],
        single_connection_client=True,
        **with_client_defaults({}),
    ) as frozen:
        mine = frozen.client_id()
        dead_owner(bench, *ids.values(), mine, -1, 0, 2**70)
        report = bench.reaper().reap()
        assert [reason.name for reason in report.dead.values()] == ["HUNG"]
        eventually(lambda: mine not in ids_of(bench.client), message="the dead owner's own is cut")
        assert set(ids.values()) <= ids_of(bench.client)


def test_the_control_ids_that_are_believed_cut_them(others, monkeypatch):
    bench, clients_of = others
    monkeypatch.setattr(clients, "recognised", lambda _, ids, *__: dict.fromkeys(ids, True))
    ids = {client.client_id() for client in clients_of.values()}
    dead_owner(bench, *ids)
    bench.reaper().reap()
    eventually(lambda: not ids & ids_of(bench.client))


def test_a_user_who_may_not_list_connections_cuts_none(others):
    bench, clients_of = others
    [first, *_] = clients_of.values()
    run, id = run_id(bench.client), first.client_id()
    bench.client.execute_command(
        "ACL", "SETUSER", "blind", "on", ">b", "~*", "+@all", "-client|list"
    )
    port = bench.client.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, username="blind", password="b") as blind:
        assert not cut(blind, run, [id]), "and says so"
        assert id in ids_of(bench.client)


def test_a_name_serves_where_the_server_knows_no_library(others):
    """Redis before 7.2 has no CLIENT SETINFO."""
    bench, _ = others
    port = bench.client.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port, client_name=LIBRARY_NAME, single_connection_client=True) as named:
        id = named.client_id()
        assert cut(bench.client, run_id(bench.client), [id])
        eventually(lambda: id not in ids_of(bench.client))


def test_a_stranger_who_has_a_read_s_id_is_not_unblocked(fresh_server):
    """Several proxies behind one run id: the id that the read was told is a stranger's at the proxy
    that is asked."""
    server = fresh_server()
    with Inbox(server.url(), consume=False) as inbox:
        read = BlockingRead(inbox.channel.owner)
        read.connect()
        stranger = redis.Redis(port=server.port, single_connection_client=True)
        read.id = stranger.client_id()
        assert not unblock(inbox.channel.owner.client, [read])
        assert calls(server.client(), "client|unblock") == 0
        read.close()
        stranger.close()


def test_a_read_is_looked_up_once_and_called_off_each_time(fresh_server):
    """It costs no command for each job: each pair of connections is looked up once."""
    server = fresh_server()
    with Inbox(server.url(), consume=False) as inbox:
        read = BlockingRead(inbox.channel.owner)
        read.connect()
        for _ in range(3):
            read.arm("mail")
            assert unblock(inbox.channel.owner.client, [read])
            assert read.read() is None
        assert calls(server.client(), "client|list") == 1
        read.close()
