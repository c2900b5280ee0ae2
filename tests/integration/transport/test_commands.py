"""How many commands a job costs: exact, where a time would only say how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import kombu
import pytest
from kombu.asynchronous.hub import Hub

from support.servers.commands import OURS, STOCK, commands
from support.servers.server import Server
from support.workers.inbox import Inbox, publish

JOBS = 320
PREFETCH = 16


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """The server's counts are everybody's."""
    server = Server().start()
    yield server
    server.close()


def drained(connection: kombu.Connection) -> Callable[[], object]:
    return lambda: connection.drain_events(timeout=10)


def hubbed(connection: kombu.Connection) -> Callable[[], object]:
    hub = Hub()
    connection.transport.register_with_event_loop(connection.connection, hub)
    loop = hub.create_loop()
    return lambda: next(loop)


def cost(
    server: Server, transport: str, loop: Callable[[kombu.Connection], Callable[[], object]]
) -> float:
    """Commands a job, of a consumer that acks each as soon as it has it."""
    server.client().flushall()
    publish(server.url(), "mail", *range(JOBS))
    with Inbox(server.url(), prefetch=PREFETCH, transport=transport, consume=False) as inbox:

        def ack(message: kombu.Message) -> None:
            message.ack()
            inbox.messages.append(message)

        inbox.consumer.on_message = ack
        inbox.consumer.consume()
        turn = loop(inbox.connection)
        server.client().config_resetstat()
        while len(inbox.messages) < JOBS:
            turn()
        return commands(server, transport) / JOBS


def test_a_consumer_without_a_loop_sends_an_ack_for_each_job_and_claims_in_batches(own):
    assert cost(own, OURS, drained) <= 1.3


def test_a_turn_of_the_loop_settles_and_claims_for_many(own):
    """Were one job delivered in each turn, it would be two."""
    assert cost(own, OURS, hubbed) <= 1.0


@pytest.mark.parametrize("loop", [drained, hubbed])
def test_the_control_stock_sends_several_for_each(own, loop):
    assert cost(own, STOCK, loop) >= 5
