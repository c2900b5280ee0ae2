"""Plain kombu on the transport: what a user of kombu relies on goes on as in stock."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any
from uuid import UUID

import kombu
import pytest
from kombu.exceptions import ContentDisallowed
from kombu.transport import redis
from redis.exceptions import OutOfMemoryError, ResponseError

from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import TRANSPORT, Inbox, publish

MESSAGES = list(range(1, 6))


def private_lists(bench: Bench) -> set[str]:
    """The queue lists from which something is in flight."""
    return {job.queue_list for job in bench.held()}


def test_messages_arrive_in_order_and_leave_nothing_when_acked(url, bench):
    publish(url, "mail", *MESSAGES)
    with Inbox(url) as inbox:
        assert inbox.receive(5) == MESSAGES
        assert len(private_lists(bench)) == 1
        inbox.ack_all()
        assert not private_lists(bench)
        assert bench.queue() == []
    ours = {name for name in bench.key_names() if name.startswith("superfetch")}
    assert ours == {bench.keys.served}, "that it was served"


def test_a_stock_consumer_and_ours_share_a_queue(url):
    """Whatever one gives back, the other can take: nothing of the format is ours alone."""
    publish(url, "mail", "one")
    with Inbox(url) as ours:
        assert ours.receive(1) == ["one"]
    with Inbox(url, transport=None) as stock:
        assert stock.receive(1) == ["one"]
        stock.messages[0].reject(requeue=True)
    with Inbox(url) as ours:
        assert ours.receive(1) == ["one"]
        ours.ack_all()


def test_headers_of_types_that_json_has_not_come_back_as_they_were(url):
    """kombu writes them as dicts, which its decoder looks for."""
    headers = {"due": datetime(2026, 1, 2, 3, tzinfo=timezone.utc), "id": UUID(int=7), "plain": "é"}
    for transport in (TRANSPORT, None):
        publish(url, "mail", "one", headers=headers)
        with Inbox(url, transport=transport) as inbox:
            inbox.receive(1)
            got = inbox.messages[0].headers
            assert {name: got[name] for name in headers} == headers
            inbox.ack_all()


def test_basic_get_is_reliable_as_well(url, bench):
    publish(url, "mail", "one", "two")
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        first, second, third = queue.get(), queue.get(), queue.get()
        assert [first.decode(), second.decode(), third] == ["one", "two", None]
        assert len(bench.private()) == 2
        first.ack()
        assert len(bench.private()) == 1
    assert [json.loads(raw)["headers"] is not None for raw in bench.queue()] == [True]


def test_basic_get_delivers_what_it_claimed_beside_a_key_of_another_type(url, bench, client):
    """Two lists of one queue: an error that was raised instead would leave the claimed job in
    flight, with no consumer."""
    client.set(bench.keys.queue("mail"), "precious")
    bench.push("mail\x06\x163", payload(1))
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        queue.get().ack()
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            queue.get()
        assert not bench.held()


def test_basic_get_without_ack_protects_nothing(url, bench):
    publish(url, "mail", "one")
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        assert queue.get(no_ack=True).decode() == "one"
        assert bench.queue() == []
        assert bench.registry.owners() == {}


def test_a_consumer_without_ack_uses_no_private_list(url, bench):
    """pidbox replies and results: it registers nobody, and its messages are gone at once."""
    with Inbox(url, no_ack=True) as inbox:
        inbox.settle_in()
        publish(url, "mail", *MESSAGES)
        assert inbox.receive(5) == MESSAGES
        ours = {name for name in bench.key_names() if name.startswith("superfetch")}
        assert ours <= {bench.keys.served}


def test_consumers_with_and_without_ack_on_one_channel(url, bench):
    with Inbox(url, "mail") as inbox:
        fast: list[Any] = []
        consumer = kombu.Consumer(
            inbox.channel, [kombu.Queue("replies")], no_ack=True, on_message=fast.append
        )
        consumer.consume()
        inbox.settle_in()
        publish(url, "replies", "r")
        publish(url, "mail", "m")
        assert inbox.receive(1) == ["m"]
        eventually(lambda: inbox.turn() or fast)
        [owner] = bench.registry.owners()
        assert set(bench.record(owner).lists) & {"replies"} == set()
        assert private_lists(bench) == {"mail"}


def test_priority_steps_and_separator_are_kombus_options(url, bench):
    options = {"priority_steps": list(range(4)), "sep": ":", "queue_order_strategy": "priority"}
    for priority in (3, 2, 1, 0):
        publish(url, "mail", priority, priority=priority, options=options)
    assert {"mail", "mail:1", "mail:2", "mail:3"} <= bench.key_names()
    with Inbox(url, **options) as inbox:
        assert inbox.receive(4) == [0, 1, 2, 3]
        assert len(bench.private(queue="mail:2")) == 1
    assert len(bench.queue("mail:2")) == 1, "and went back to the very list it came from"


def test_a_key_prefix_is_put_before_every_key(url, bench):
    options = {"global_keyprefix": "shop:"}
    publish(url, "mail", *MESSAGES, options=options)
    publish(url, "mail", "a stranger's")
    with Inbox(url, **options) as inbox:
        assert inbox.receive(5) == MESSAGES
        inbox.messages[0].ack()
        inbox.messages[1].reject(requeue=True)
        outside = {name for name in bench.key_names() if not name.startswith("shop:")}
        assert {name for name in outside if not name.startswith("_kombu")} == {"mail"}
    assert len(bench.queue("shop:mail")) == 4
    assert len(bench.queue("mail")) == 1


def test_a_fanout_reaches_everybody_and_uses_no_private_list(url, bench):
    exchange = kombu.Exchange("news", type="fanout")
    with (
        Inbox(url, kombu.Queue("one", exchange)) as one,
        Inbox(url, kombu.Queue("two", exchange)) as two,
        kombu.Connection(url, transport=TRANSPORT) as connection,
    ):
        one.settle_in()
        two.settle_in()
        kombu.Producer(connection.channel(), exchange).publish("hello", serializer="json")
        for inbox in (one, two):
            assert inbox.receive(1) == ["hello"]
            inbox.ack_all()
        assert bench.registry.owners() == {}


def test_a_queue_that_expires_goes_on_expiring(url, bench):
    queue = kombu.Queue(
        "temporary", kombu.Exchange("temporary"), routing_key="temporary", expires=60
    )
    publish(url, queue, "one")
    if bench.client.pttl("temporary") < 0:
        pytest.skip("this kombu lets no queue on Redis expire")
    with Inbox(url, queue) as inbox:
        inbox.receive(1)
        [owner] = bench.registry.owners()
        assert bench.record(owner).lists["temporary"] == 60_000
    assert len(bench.queue("temporary")) == 1
    assert 0 < bench.client.pttl("temporary") <= 60_000, "given back, it expires as before"


@pytest.mark.parametrize("raw", [b"no JSON", b"\xff\xfe", b"[1]", b"{}", b""], ids=repr)
def test_what_is_no_message_is_quarantined_and_the_next_is_served(url, bench, raw):
    bench.push("mail", raw, payload("good"))
    with Inbox(url) as inbox:
        inbox.receive(1)
        assert inbox.messages[0].headers["id"] == "good"
        [job] = bench.dead_set.find()
        assert job.payload == raw
        inbox.ack_all()
        bench.push("mail", raw)
        with kombu.Connection(url, transport=TRANSPORT) as connection:
            assert kombu.Queue("mail")(connection.channel()).get() is None


def test_a_message_that_may_not_be_decoded_is_the_consumers_affair(url, bench):
    """A content type that it does not accept: it is delivered, and can be rejected."""
    publish(url, "mail", "one")
    with Inbox(url, accept=["yaml"]) as inbox:
        eventually(lambda: inbox.turn() or inbox.messages)
        with pytest.raises(ContentDisallowed):
            inbox.messages[0].decode()
        inbox.messages[0].reject()
        assert (bench.queue(), private_lists(bench)) == ([], set())


def test_a_queue_whose_key_becomes_something_else_stops_no_other(url, bench):
    with Inbox(url, "broken", "mail") as inbox:
        inbox.settle_in()
        bench.client.hset("broken", "a", 1)
        publish(url, "mail", *MESSAGES)
        assert inbox.receive(5) == MESSAGES
        inbox.ack_all()
        inbox.settle_in()
        bench.client.delete("broken")
        publish(url, "broken", "mended")
        assert inbox.receive(6)[-1] == "mended"
        inbox.ack_all()


def test_a_job_copied_by_hand_is_two_jobs(url, bench):
    """The copy brings the same delivery tag; acking one must not settle both."""
    bench.push("mail", payload(1), payload(1))
    with Inbox(url) as inbox:
        inbox.receive(2)
        inbox.messages[0].ack()
        eventually(lambda: bench.private() == [payload(1)])
        inbox.messages[1].ack()
        eventually(lambda: bench.private() == [])


def test_a_second_ack_settles_nothing(url, bench):
    bench.push("mail", payload(1), payload(1))
    with Inbox(url) as inbox:
        inbox.receive(2)
        inbox.channel.basic_ack(inbox.messages[0].delivery_tag)
        inbox.channel.basic_ack(inbox.messages[0].delivery_tag)
        eventually(lambda: len(bench.private()) < 2)
        assert bench.private() == [payload(1)]


def test_a_wrong_option_is_refused_at_once(url):
    from celery_superfetch.errors import ConfigError

    with pytest.raises(ConfigError, match="did you mean 'owner_ttl'"):
        Inbox(url, owner_tll=1)


def test_two_connections_of_one_process_are_one_owner(url, bench):
    with Inbox(url, "mail") as one, Inbox(url, "slow") as two:
        one.settle_in()
        two.settle_in()
        [owner] = bench.registry.owners()
        assert {"mail", "slow"} <= set(bench.record(owner).lists)
    assert bench.registry.owners() == {}


def test_a_full_server_that_refuses_transactions_says_how_long_a_queue_is(url, monkeypatch):
    """Redis 6.2 does so; a queue that seemed empty would be deleted where it only may be if so."""
    publish(url, "mail", "one", "two")

    def refused(*_: Any) -> None:
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")

    with kombu.Connection(url, transport=TRANSPORT) as connection:
        monkeypatch.setattr(redis.Channel, "_size", refused)
        assert connection.default_channel.queue_declare("mail").message_count == 2
