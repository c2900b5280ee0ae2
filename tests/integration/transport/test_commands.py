"""How many commands a job costs: exact, where a time would only say how busy the machine is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub

from celery_superfetch.store.wire import scripts
from support.servers.commands import OURS, STOCK, commands
from support.servers.server import NoServerBinary, Server
from support.workers.bench import Bench, payload

JOBS = 320
PREFETCH = 16


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """The server's counts are everybody's."""
    try:
        server = Server().start()
    except NoServerBinary as exc:
        pytest.skip(str(exc))
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
    done = 0

    def ack(message: kombu.Message) -> None:
        nonlocal done
        message.ack()
        done += 1

    with kombu.Connection(server.url(), transport=transport) as connection:
        queue = kombu.Queue("mail", kombu.Exchange("mail"), "mail")
        producer = connection.Producer(serializer="json")
        for number in range(JOBS):
            producer.publish(number, exchange="mail", routing_key="mail", declare=[queue])
        with connection.channel() as channel:
            consumer = kombu.Consumer(channel, [queue], on_message=ack)
            consumer.qos(prefetch_count=PREFETCH)
            consumer.consume()
            turn = loop(connection)
            server.client().config_resetstat()
            while done < JOBS:
                turn()
            return commands(server, transport) / JOBS


def test_a_consumer_without_a_loop_sends_an_ack_for_each_job_and_claims_in_batches(
    own: Server,
) -> None:
    assert cost(own, OURS, drained) <= 1.3


def test_a_turn_of_the_loop_settles_and_claims_for_many(own: Server) -> None:
    """Were one job delivered in each turn, it would be two."""
    assert cost(own, OURS, hubbed) <= 1.0


def test_claims_in_the_same_words_are_packed_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acks may be posted in between; and each other claim goes out in words of its own."""
    owner, held, packed = bench.owner().owner, bench.in_flight, []
    pack = scripts.packed

    def noted(commands: Iterable[Sequence[Any]]) -> list[bytes]:
        packed.extend(list(command) for command in commands)
        return pack(packed[-1:])

    bench.push("mail", *(payload(n) for n in range(6)))
    bench.push("fax", payload(6))
    held.claim(owner, ["mail"], 1, 1, [])
    monkeypatch.setattr(scripts, "packed", noted)
    claims = ("mail", 1, 0), ("mail", 1, 0), ("mail", 2, 1), ("mail", 1, 1), ("fax", 1, 1)
    for name, most, times in claims:
        packed.clear()
        got = held.claim(owner, [name], most, 1, []).jobs
        assert [claimed.job.queue_list for claimed in got] == [name] * most
        assert len(packed) == times
        for claimed in got:
            held.ack(claimed)
        held.post()


@pytest.mark.parametrize("loop", [drained, hubbed])
def test_the_control_stock_sends_several_for_each(
    own: Server, loop: Callable[[kombu.Connection], Callable[[], object]]
) -> None:
    assert cost(own, STOCK, loop) >= 5
