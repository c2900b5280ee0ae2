"""Jobs that stock kombu left unacked are taken over: whole, in order, to where they belong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import kombu
import pytest
import redis
from kombu.transport.redis import Channel

from celery_superfetch.app.queues import routes_of, unacked_of
from celery_superfetch.migration.from_stock import MIGRATE_BATCH, Migrated, Routes, take_over
from celery_superfetch.migration.stock_unacked import Unacked
from celery_superfetch.model.config import Config
from celery_superfetch.store.database import Database
from support.servers.faults import busy
from support.workers.inbox import Inbox, publish, stock

PREFIX = "shop-a:"
DIRECT = kombu.Exchange("post", "direct")
TOPIC = kombu.Exchange("news", "topic")
FANOUT = kombu.Exchange("all", "fanout")
LETTERS = kombu.Queue("letters", DIRECT, routing_key="letter")
SPORT = kombu.Queue("sport", TOPIC, routing_key="news.sport.#")
EVERYTHING = kombu.Queue("everything", TOPIC, routing_key="news.#")
SHORT_LIVED = kombu.Queue("short-lived", expires=60)
RADIO = kombu.Queue("radio", FANOUT)


@pytest.fixture
def migrate(make_app: Any, client: redis.Redis) -> Iterator[Callable[..., Migrated]]:
    """`migrate(queues=[...], options={...}, through=..., force=True)`: one pass for an app."""

    def run(
        queues: list[kombu.Queue] | None = None,
        options: dict[str, Any] | None = None,
        through: Callable[[Routes], Routes] = lambda routes: routes,
        **how: Any,
    ) -> Migrated:
        app = make_app(conf={"broker_transport_options": options or {}})
        app.conf.task_queues = queues
        config = Config(global_keyprefix=(options or {}).get("global_keyprefix", ""))
        with routes_of(app) as routes:
            unacked = Unacked(Database(client, config), *unacked_of(app))
            return take_over(unacked, through(routes), **how)

    return run


def delivered(url: str, *queues: str | kombu.Queue, count: int, **how: Any) -> list[Any]:
    """Let a stock consumer take so many jobs, one after the other, and die; what they say."""
    inbox = stock(url, *queues, **how)
    said = inbox.receive(count)
    inbox.crash()
    return said


def lists(client: redis.Redis, prefix: str = "") -> dict[str, list[bytes]]:
    """Every queue list, next to be claimed first."""
    names = [key.decode() for key in client.keys(f"{prefix}*") if client.type(key) == b"list"]
    return {name.removeprefix(prefix): client.lrange(name, 0, -1)[::-1] for name in names}


def messages(raws: list[bytes], *, redelivered: bool = False) -> list[Any]:
    """What they say; marked as kombu marks what it restores."""
    said = [json.loads(raw) for raw in raws]
    for message in said if redelivered else ():
        for flags in message["headers"], message["properties"]["delivery_info"]:
            assert flags.setdefault("redelivered", True) is True
    return said


def test_jobs_come_back_as_stock_restores_them_before_those_that_wait(url, client, migrate):
    publish(url, "mail", *range(250))
    before = lists(client)["mail"]
    inbox = stock(url, "mail", prefetch=240)
    inbox.receive(240)
    for message in inbox.messages[:10]:
        message.ack()
    inbox.crash()

    report = migrate()
    assert (report.found, report.requeued, report.queues) == (230, 230, {"mail": 230})
    assert (report.left, report.gone, report.consumers) == ([], 0, [])
    back = lists(client).pop("mail")
    assert messages(back[:230]) == messages(before[10:240], redelivered=True)
    assert back[230:] == before[240:]
    assert not client.exists("unacked", "unacked_index")
    assert client.keys("superfetch*") == []

    with Inbox(url, "mail", prefetch=3) as ours:
        assert ours.receive(3) == [10, 11, 12]
        assert all(message.delivery_info["redelivered"] for message in ours.messages)
    assert migrate().found == 0


def test_each_job_goes_where_stock_would_restore_it(url, client, migrate):
    """What stock's own restore does with the same hash is the control."""
    queues = [LETTERS, SPORT, EVERYTHING, SHORT_LIVED, kombu.Queue("mail")]
    options = {"priority_steps": [0, 2, 5]}
    to = {"exchange": DIRECT, "routing_key": "letter"}
    with kombu.Connection(url, transport_options=options) as connection:
        producer = connection.Producer(serializer="json")
        for queue in queues:
            queue(connection.default_channel).declare()
        for n in range(10):
            producer.publish(f"p{n}", routing_key="mail", priority=n)
            producer.publish(f"l{n}", priority=n, **to)
        producer.publish("both", exchange=TOPIC, routing_key="news.sport.chess")
        producer.publish("one", exchange=TOPIC, routing_key="news.weather")
        producer.publish("short", routing_key="short-lived")
        plain = connection.channel()
        plain.body_encoding = None  # the body as text, not in base64
        connection.Producer(plain, serializer="json").publish("plain", routing_key="mail")
    payloads = lists(client)
    delivered(url, *queues, count=25, transport_options={}, **options)
    held = {key: client.dump(key) for key in client.keys("unacked*")}
    # The two copies of "both" have one tag, and stock keeps one of them.
    assert client.hlen("unacked") == 24

    with kombu.Connection(url, transport_options={**options, "visibility_timeout": 0}) as old:
        channel = old.channel()
        for queue in queues:
            queue(channel).declare()
        channel.qos.restore_visible(num=None)
    by_stock = lists(client)
    for name in by_stock:
        client.delete(name)
    for key, value in held.items():
        client.restore(key, 0, value)

    report = migrate(queues, options=options)
    ours = lists(client)
    assert (report.requeued, report.left) == (24, [])
    assert {name: len(jobs) for name, jobs in ours.items()} == {
        name: len(jobs) for name, jobs in by_stock.items()
    }
    for name, raws in ours.items():
        assert messages(raws) == messages(payloads[name], redelivered=True), "in the same order"
        assert messages(raws) == messages(by_stock[name]), "as stock writes them"
    if hasattr(Channel, "_get_queue_expire"):  # an older kombu knows no x-expires
        assert 0 < client.pttl("short-lived") <= 60_000
    assert client.pttl("mail") == -1


def test_a_prefix_and_other_names_of_the_hash_are_honoured(url, client, migrate):
    options = {
        "global_keyprefix": PREFIX,
        "unacked_key": "in-hand",
        "unacked_index_key": "in-hand-since",
    }
    publish(url, LETTERS, "a", "b", options=options)
    before = lists(client, PREFIX)
    delivered(url, LETTERS, count=2, **options)
    assert client.hlen(f"{PREFIX}in-hand") == 2
    assert migrate([LETTERS]).found == 0
    assert migrate([LETTERS], options=options).requeued == 2
    ours = lists(client, PREFIX)
    assert ours.keys() == before.keys() == {"letters"}
    assert messages(ours["letters"]) == messages(before["letters"], redelivered=True)


def test_exchanges_that_the_app_does_not_know_are_read_from_redis(url, client, migrate):
    for queue in (LETTERS, SPORT, EVERYTHING):
        publish(url, queue)
    with kombu.Connection(url) as connection:
        for queue in (LETTERS, SPORT, EVERYTHING):
            queue(connection.default_channel).declare()
        producer = connection.Producer(serializer="json")
        producer.publish("letter", exchange=DIRECT, routing_key="letter")
        producer.publish("chess", exchange=TOPIC, routing_key="news.sport.chess")
    before = lists(client)
    delivered(url, LETTERS, SPORT, EVERYTHING, count=3)
    assert migrate().requeued == 2
    ours = lists(client)
    assert ours.keys() == before.keys()
    for name, raws in ours.items():
        assert messages(raws) == messages(before[name], redelivered=True)


def test_what_leads_nowhere_stays_and_is_named(url, client, migrate):
    publish(url, "mail", "m")
    delivered(url, "mail", count=1)
    ((_, value),) = client.hgetall("unacked").items()
    message = json.loads(value)[0]
    others = {
        "unbound": json.dumps([message, "gone", "nobody"]),
        "broadcast": json.dumps([message, "all", ""]),
        "junk": "{",
        "short": json.dumps([message]),
        "typed": json.dumps([message, "", "taken"]),
        "unindexed": json.dumps([message, "", "mail"]),
    }
    client.hset("unacked", mapping=others)
    client.zadd("unacked_index", {name: n for n, name in enumerate(others) if n != 5})
    client.zadd("unacked_index", {"stale": 1})
    client.set("taken", "by something else")

    report = migrate([RADIO])
    assert {job.tag: job.why for job in report.left} == {
        "unbound": "no queue is bound to its exchange and routing key",
        "broadcast": "no queue is bound to its exchange and routing key",
        "junk": "it is not a kombu message",
        "short": "it is not a kombu message",
        "typed": "taken is not a queue: the key has another type",
    }
    assert (report.found, report.requeued) == (7, 2), "also what the index does not know"
    assert client.hkeys("unacked") == [name.encode() for name in others][:5]
    assert client.get("taken") == b"by something else"

    report = migrate([RADIO], otherwise="aside")
    assert (report.requeued, report.queues) == (2, {"aside": 2})
    assert len(report.left) == 3


def test_what_was_acked_or_delivered_anew_meanwhile_is_not_taken(url, client, migrate):
    publish(url, "mail", *"abcde")
    delivered(url, "mail", count=5)
    tags = client.zrange("unacked_index", 0, -1)

    def race(routes: Routes) -> Routes:
        """Between our look and our move, a job is acked and two come back and go out again."""

        def route(message: Mapping[str, Any], exchange: str, routing_key: str) -> Any:
            client.hdel("unacked", tags[0])
            client.zrem("unacked_index", tags[0])
            client.zadd("unacked_index", {tags[1]: 4e9})
            value = json.loads(client.hget("unacked", tags[2]))
            value[0]["headers"]["redelivered"] = True
            client.hset("unacked", tags[2], json.dumps(value))
            return routes(message, exchange, routing_key)

        return route

    report = migrate(through=race)
    assert (report.requeued, report.gone) == (2, 3)
    assert set(client.hkeys("unacked")) == set(tags[1:3])
    # The control: nobody in between, and they are taken.
    assert migrate().requeued == 2


def test_a_batch_of_which_nothing_can_move_does_not_stop_the_pass(url, client, migrate):
    """The command ended with an error of redis-py, and the oldest job stayed for ever."""
    publish(url, "mail", "good")
    delivered(url, "mail", count=1)
    ((_, value),) = client.hgetall("unacked").items()
    message = json.loads(value)[0]
    for n in range(MIGRATE_BATCH):
        client.hset("unacked", f"bad{n}", json.dumps([message, "gone", "nobody"]))
        client.zadd("unacked_index", {f"bad{n}": 4e9 + n})
    report = migrate()
    assert (report.found, report.requeued, len(report.left)) == (MIGRATE_BATCH + 1, 1, 25)
    assert client.llen("mail") == 1
    # The control: also if all of them are acked between the list and the look.
    again = migrate(through=lambda routes: lambda *_: client.delete("unacked") and {})
    assert (again.found, again.requeued) == (MIGRATE_BATCH, 0)


def test_jobs_that_were_all_acked_since_the_list_are_gone(url, client, migrate, monkeypatch):
    """As above, but no entry is left of the first batch when it is read."""
    publish(url, "mail", *range(MIGRATE_BATCH + 1))
    delivered(url, "mail", count=MIGRATE_BATCH + 1)
    newest = client.zrevrange("unacked_index", 0, MIGRATE_BATCH - 1)
    listed = Unacked.tags

    def tags(unacked: Unacked) -> list[bytes]:
        found = listed(unacked)
        client.hdel("unacked", *newest)
        return found

    monkeypatch.setattr(Unacked, "tags", tags)
    report = migrate()
    assert (report.requeued, report.gone, client.llen("mail")) == (1, MIGRATE_BATCH, 1)


def becoming_a_string(client: redis.Redis, key: str, monkeypatch: Any) -> None:
    """Let a queue list become a key of another type between the check of its type and the move."""
    move = Unacked.move

    def late(unacked: Unacked, jobs: Any) -> Any:
        client.set(key, "by something else")
        return move(unacked, jobs)

    monkeypatch.setattr(Unacked, "move", late)


def test_a_queue_that_becomes_another_type_before_the_move_costs_no_job(
    url, client, migrate, monkeypatch
):
    """A transaction of the server goes on after an error: the job left the hash, and was pushed
    nowhere. The jobs of the other queues move."""
    publish(url, "mail", "m")
    publish(url, "post", "p")
    delivered(url, "mail", "post", count=2)
    held = {tag for tag, value in client.hgetall("unacked").items() if b'"mail"' in value}
    with monkeypatch.context() as context:
        becoming_a_string(client, "mail", context)
        report = migrate()
    [left] = report.left
    assert (left.routing_key, left.why) == (
        "mail",
        "mail is not a queue: the key has another type",
    )
    assert (report.requeued, report.gone, report.queues) == (1, 0, {"post": 1})
    assert {*client.hkeys("unacked")} == {*client.zrange("unacked_index", 0, -1)} == held
    client.delete("mail")
    assert migrate().requeued == 1
    assert [*client.hkeys("unacked")] == []


@pytest.mark.parametrize("command", ["hget", "hdel", "zrem", "zscore", "rpush"])
def test_a_user_who_may_not_do_all_of_it_moves_nothing(url, client, migrate, command):
    publish(url, "mail", "m")
    before = lists(client)
    delivered(url, "mail", count=1)
    held = client.hgetall("unacked")
    client.execute_command("ACL", "SETUSER", "default", f"-{command}")
    try:
        with pytest.raises(redis.ResponseError):
            migrate()
    finally:
        client.execute_command("ACL", "SETUSER", "default", f"+{command}")
    assert client.hgetall("unacked") == held
    assert lists(client) == {}
    assert migrate().requeued == 1
    assert messages(lists(client)["mail"]) == messages(before["mail"], redelivered=True)


ODD = {
    "a list": ([1], "mail", None, "it is not a kombu message"),
    "a dictionary": ("", {"a": 1}, None, "it is not a kombu message"),
    "half a character": ("", "\ud800", None, "its queue cannot be found: UnicodeEncodeError: "),
    "of a typed exchange": ("typed", "x", None, "its queue cannot be found: ResponseError: WRONG"),
    "without end": ("", "mail", float("inf"), "its queue cannot be found: OverflowError: "),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_entry_that_raises_stays_and_the_next_one_moves(url, client, migrate, cli, kind):
    exchange, routing_key, priority, why = ODD[kind]
    publish(url, "celery", "good")
    delivered(url, "celery", count=1)
    ((_, value),) = client.hgetall("unacked").items()
    message = json.loads(value)[0]
    client.set("_kombu.binding.typed", "by something else")
    if priority is not None:
        message["properties"]["priority"] = priority
    client.hset("unacked", "odd", json.dumps([message, exchange, routing_key]))
    client.zadd("unacked_index", {"odd": 4e9})
    shown = cli("migrate", "--dry-run", code=1).out
    assert "Would requeue 1 of 2" in shown
    assert why in shown
    report = migrate()
    [left] = report.left
    assert (report.requeued, left.tag, client.llen("celery")) == (1, "odd", 1)
    assert left.why.startswith(why)
    assert client.hkeys("unacked") == [b"odd"]
    assert json.loads(cli("migrate", "--json", code=1).out)["requeued"] == 0


def test_a_server_that_goes_away_is_no_fault_of_an_entry(url, client, migrate):
    publish(url, "mail", "a", "b")
    delivered(url, "mail", count=2)

    def away(routes: Routes) -> Routes:
        def route(*_: Any) -> Any:
            raise redis.ConnectionError("gone")

        return route

    with pytest.raises(redis.ConnectionError):
        migrate(through=away)
    assert migrate().requeued == 2


def test_a_server_that_is_busy_is_no_fault_of_an_entry(url, client, server, migrate):
    """Each entry stayed, as one whose queue cannot be found, and the next ones moved before it."""
    publish(url, "mail", "a", "b")
    delivered(url, "mail", count=2)

    def while_busy(routes: Routes) -> Routes:
        def route(*args: Any) -> Any:
            with busy(server):
                return routes(*args)

        return route

    ((tag, value), *_) = client.hgetall("unacked").items()
    client.hset("unacked", tag, json.dumps([json.loads(value)[0], "unknown", "mail"]))
    with pytest.raises(redis.ResponseError, match="BUSY"):
        migrate(through=while_busy)
    assert client.hlen("unacked") == 2
    # The control: at another time one of them moves, and the other has no queue.
    assert migrate().requeued == 1
