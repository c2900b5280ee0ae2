"""A channel has no connection that it does not use, and none that it has used up."""

from __future__ import annotations

import contextlib
from typing import Any

import kombu
import pytest
import redis
from kombu.asynchronous.hub import Hub

from support.servers.connections import BROADCASTS, BRPOP, COMMANDS, open_connections
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.inbox import TRANSPORT, turn_of


@pytest.fixture
def at(own: redis.Redis) -> str:
    """The URL of the server that nobody else uses."""
    return f"redis://127.0.0.1:{own.connection_pool.connection_kwargs['port']}/0"


def consumer_without_acks(channel: Any, received: list[Any]) -> kombu.Consumer:
    queue = kombu.Queue("replies", kombu.Exchange("replies"), routing_key="replies")
    return kombu.Consumer(channel, [queue], no_ack=True, on_message=received.append)


def drain_until(connection: kombu.Connection, done: Any) -> None:
    def look() -> bool:
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.05)
        return bool(done())

    eventually(look, every=0)


def test_a_producer_has_one_connection(own, at):
    """kombu pings the server by the client for BRPOP, which a producer never needs."""
    counts = []
    for transport in ("redis", TRANSPORT):
        with kombu.Connection(at, transport=transport) as connection:
            connection.Producer().publish({}, routing_key="mail", exchange="")
            counts.append(open_connections(own))
        eventually(lambda: not open_connections(own))
    stock, ours = counts
    assert ours == {COMMANDS: 1}
    assert stock.total() == 2


@pytest.mark.parametrize("looped", [False, True], ids=["drained", "in Celery's loop"])
def test_the_last_cancel_closes_the_connection_of_queues_without_acks(own, at, looped):
    """Also where its BRPOP is outstanding: its reply is read first. A later consumer of the same
    channel has another one, and hears of messages as before."""
    received: list[Any] = []
    hub = Hub()
    with kombu.Connection(at, transport=TRANSPORT) as connection:
        if looped:
            connection.connection  # noqa: B018 - connects
            connection.register_with_event_loop(hub)
        channel = connection.channel()

        def until(done: Any) -> None:
            if looped:
                eventually(lambda: turn_of(hub) and done(), every=0)
            else:
                drain_until(connection, done)

        for number in range(2):
            consumer = consumer_without_acks(channel, received)
            consumer.consume()
            own.lpush("replies", payload(number))
            until(lambda number=number: len(received) == number + 1)
            until(lambda: open_connections(own)[BRPOP] == 1)  # waits for the next
            consumer.cancel()
            until(lambda: not open_connections(own)[BRPOP])
            cycle = connection.transport.cycle
            assert not cycle._fd_to_chan
            assert not cycle._chan_to_sock
            watched = set(hub.readers)
            assert not watched - set(cycle._watched)
    hub.close()


def test_a_message_that_a_cancelled_read_has_taken_goes_back_to_its_queue(own, at):
    received: list[Any] = []
    with kombu.Connection(at, transport=TRANSPORT) as connection:
        channel = connection.channel()
        channel.brpop_timeout = 30
        consumer = consumer_without_acks(channel, received)
        consumer.consume()
        drain_until(connection, lambda: open_connections(own)[BRPOP])
        connection.Producer().publish("late", exchange="replies", routing_key="replies")
        eventually(lambda: not own.llen("replies"), message="the outstanding read has it")
        consumer.cancel()
        drain_until(connection, lambda: not open_connections(own)[BRPOP])
        assert own.llen("replies") == 1
    assert not received


def test_a_closed_channel_leaves_no_binding_of_its_broadcasts(own, at):
    """kombu deletes them by the client that is not made any more before it is needed."""
    exchange = kombu.Exchange("news", type="fanout")
    with kombu.Connection(at, transport=TRANSPORT) as connection:
        queue = kombu.Queue("hearer", exchange, auto_delete=True)
        kombu.Consumer(connection.channel(), [queue], no_ack=True).consume()
        drain_until(connection, lambda: open_connections(own)[BROADCASTS])
        assert own.smembers("_kombu.binding.news")
    assert not own.smembers("_kombu.binding.news")
