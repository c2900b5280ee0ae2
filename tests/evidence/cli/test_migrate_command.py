"""`celery superfetch migrate`: who is in the way, what it says, and a kill in the middle of it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any, cast

import pytest
import redis
from redis.exceptions import RedisError

from celery_superfetch.errors import StillInUse
from celery_superfetch.migration.from_stock import Migrated, take_over
from celery_superfetch.migration.stock_unacked import Unacked
from celery_superfetch.model.config import Config
from celery_superfetch.store.database import Database
from celery_superfetch.store.redis.connections import is_own_connection
from support.process import Process
from support.servers.ledger import LEDGER_DB
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.cli import kill_in_the_middle, superfetch_command
from support.workers.inbox import Inbox, publish, stock
from support.workers.worker import process_env

MANY = 10_000


def unacked(client: redis.Redis) -> Unacked:
    return Unacked(Database(client, Config()), "unacked", "unacked_index")


def migrate(client: redis.Redis, **how: Any) -> Migrated:
    """A pass that knows no exchange."""
    return take_over(unacked(client), lambda _, exchange, routing_key: {routing_key: 0}, **how)


def connections(client: redis.Redis) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", client.client_list())


def names(client: redis.Redis) -> list[int]:
    """Ids of the jobs on the queue, next to be claimed last."""
    return [int(json.loads(raw)["headers"]["id"]) for raw in client.lrange("celery", 0, -1)]


def test_whoever_consumes_as_stock_does_is_in_the_way(url, client):
    publish(url, "mail", 1, 2)
    with ExitStack() as stack:
        # Not in the way: our own consumers (that of a queue without ack consumes just as stock
        # does, but under our name), producers, and those of another database.
        stack.enter_context(Inbox(url, "other")).settle_in()
        stack.enter_context(Inbox(url, "reply", no_ack=True)).settle_in()
        stack.enter_context(stock(url.removesuffix("0") + str(LEDGER_DB), "mail")).settle_in()
        assert unacked(client).consumers() == []

        full = stock(url, "mail", prefetch=2)
        full.receive(2)
        full.turn()  # it waits for nothing: its prefetch is full
        idle = stack.enter_context(stock(url, "mail")).settle_in()
        assert client.hlen("unacked") == 2
        with pytest.raises(StillInUse, match="2 jobs are unacked") as refused:
            migrate(client)
        consumers = unacked(client).consumers() or []
        assert len(consumers) == 2
        assert all(f"id {one.id}: {one.address}" in str(refused.value) for one in consumers)
        dry = migrate(client, dry_run=True)
        assert (dry.requeued, dry.consumers and len(dry.consumers)) == (2, 2)
        assert client.hlen("unacked") == 2

        idle.close()
        with pytest.raises(StillInUse):
            migrate(client)
        # The control: told to, it takes what a living consumer holds, and both have it.
        assert migrate(client, force=True).requeued == 2
        ours = stack.enter_context(Inbox(url, "mail"))
        assert ours.receive(2) == full.said() == [1, 2]
        full.close()
        assert migrate(client).found == 0


def test_who_holds_them_cannot_be_known_without_client_list(fresh_server):
    own = fresh_server()
    admin = own.client()
    publish(own.url(), "mail", 1)
    inbox = stock(own.url(), "mail")
    inbox.receive(1)
    inbox.crash()
    admin.execute_command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "+@all", "-client|list")
    with redis.Redis.from_url(own.url().replace("//", "//shop:pw@")) as shop:
        with pytest.raises(StillInUse, match=r"the ACL forbids CLIENT LIST"):
            migrate(shop)
        admin.execute_command("ACL", "SETUSER", "shop", "+client|list")
        assert migrate(shop).requeued == 1


def test_a_server_over_its_memory_limit_moves_them_too(fresh_server):
    """A job takes no more memory on its queue than in the hash."""
    own = fresh_server()
    client = own.client()
    publish(own.url(), "mail", *range(30))
    inbox = stock(own.url(), "mail")
    inbox.receive(30)
    inbox.crash()
    client.config_set("maxmemory", 1)
    with pytest.raises(RedisError):  # the control: a command by itself is refused
        client.rpush("mail", "m")
    assert migrate(client).requeued == client.llen("mail") == 30
    assert not client.exists("unacked", "unacked_index")


def test_the_command_refuses_waits_and_reports(url, client, cli, env, tmp_path):
    publish(url, "celery", 1, 2, 3)
    inbox = stock(url, "celery")
    inbox.receive(3)
    refused = cli("migrate", "--json", code=1)
    assert "nothing was moved. 3 jobs are unacked" in refused.err
    assert refused.out == ""
    assert client.hlen("unacked") == 3

    dry = cli("migrate", "--dry-run")
    assert "Would requeue 3 of 3 unacked jobs: celery 3." in dry.out
    assert "a stock consumer is connected: id " in dry.err
    client.hset("unacked", "strange", json.dumps([json.loads(payload("s")), "nowhere", "x"]))
    dry = cli("migrate", "--dry-run", code=1)
    assert "Would requeue 3 of 4" in dry.out
    assert "shop.note[s], exchange 'nowhere', routing key 'x': no queue is bound" in dry.out
    assert client.hlen("unacked") == 4

    command = superfetch_command("migrate", "--wait", "60", "--queue", "aside", "--json")
    with Process(command, log=tmp_path / "log", env=process_env(env())) as waiting:
        eventually(
            lambda: any(
                is_own_connection(c) and c["cmd"] == "client|list" for c in connections(client)
            )
        )
        assert client.hlen("unacked") == 4
        inbox.crash()
        assert waiting.wait_exit() == 0
        done = json.loads(waiting.log())
    assert (done["requeued"], done["queues"]) == (4, {"aside": 1, "celery": 3})


def test_a_kill_in_the_middle_loses_nothing_doubles_nothing_and_keeps_the_order(
    url, client, env, tmp_path
):
    jobs = [payload(n, "celery") for n in range(MANY)]

    def hold() -> None:
        client.flushdb()
        with client.pipeline(transaction=False) as pipe:
            for n, raw in enumerate(jobs):
                pipe.hset("unacked", f"t{n}", json.dumps([json.loads(raw), "", "celery"]))
                pipe.zadd("unacked_index", {f"t{n}": n})
            pipe.execute()

    kill_in_the_middle(
        "migrate",
        env=env(),
        directory=tmp_path,
        prepare=hold,
        begun=lambda: client.llen("celery"),
        ended=lambda: not client.hlen("unacked"),
    )
    moved = client.llen("celery")
    assert 0 < moved < MANY
    assert client.hlen("unacked") == client.zcard("unacked_index") == MANY - moved
    assert names(client) == [*range(MANY)][: -moved - 1 : -1]

    assert migrate(client).requeued == MANY - moved
    assert names(client) == [*range(MANY)][::-1]
