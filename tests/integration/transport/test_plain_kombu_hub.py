"""What kombu's own tests look at from inside the stock channel, looked at from outside.

`tests/evidence/conformance/stock_only.py` names these beside the tests of kombu's that they stand
for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub

from support.servers.commands import blocked
from support.waiting import always, eventually
from support.workers.bench import payload
from support.workers.inbox import Inbox, turn_of


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Celery's event loop; `turn_of(hub)` goes round once."""
    own = Hub()
    yield own
    own.close()


def registered(inbox: Inbox, hub: Hub) -> Inbox:
    inbox.connection.register_with_event_loop(hub)
    return inbox


def receive(inbox: Inbox, hub: Hub, expected: list[str]) -> None:
    eventually(lambda: turn_of(hub) and inbox.ids() == expected, 10, 0)


def test_the_event_loop_consumes_on_after_its_connections_were_cut(url, bench, hub):
    """All of them at once, three times; the consumer connects again, as Celery's does."""
    inbox = registered(Inbox(url), hub)
    expected: list[str] = []
    for number in range(3):
        bench.push("mail", payload(number))
        expected.append(str(number))
        receive(inbox, hub, expected)
        inbox.ack_all()
        eventually(lambda: turn_of(hub) and blocked(bench.client))
        bench.client.client_kill_filter(_type="normal", skipme=True)
        seen, errors = inbox.messages, inbox.connection.connection_errors
        try:
            while True:
                turn_of(hub)
        except errors:
            inbox.close()
        inbox = registered(Inbox(url), hub)
        inbox.messages[:] = seen
    inbox.close()
    assert not hub.readers, "no socket of a lost connection stays in the loop"
    assert bench.queue() == []


@pytest.mark.parametrize("looped", [True, False], ids=["hub", "drain_events"])
def test_what_arrives_after_the_credit_is_used_up_waits_for_the_ack(url, bench, hub, looped):
    """A blocking read is under way when the prefetch is lowered to what is held already."""
    with Inbox(url, prefetch=2) as inbox:
        if looped:
            registered(inbox, hub)

        def go() -> bool:
            if looped:
                return turn_of(hub)
            inbox.turn()
            return True

        bench.push("mail", payload(1))
        eventually(lambda: go() and inbox.ids() == ["1"], 10, 0)
        if looped:  # in line no read waits while a job is in the callback's hands
            eventually(lambda: go() and blocked(bench.client))
        bench.push("mail", payload(2))
        inbox.consumer.qos(prefetch_count=1)
        always(lambda: go() and inbox.ids() == ["1"], 0.3, 0)
        inbox.messages[0].ack()
        eventually(lambda: go() and inbox.ids() == ["1", "2"], 10, 0)
        inbox.ack_all()
    assert bench.queue() == []


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_what_arrives_late_survives_cancel_and_close(url, bench, hub, end):
    """It is in the socket already, and its consumer goes away before it is read."""
    with registered(Inbox(url, prefetch=2), hub) as inbox:
        bench.push("mail", payload(1))
        receive(inbox, hub, ["1"])
        eventually(lambda: turn_of(hub) and blocked(bench.client))
        bench.push("mail", payload(2))
        assert bench.queue() == [], "the blocking read has it"
        inbox.messages[0].ack()
        if end == "cancel":
            inbox.consumer.cancel()
        else:
            inbox.channel.close()
        assert inbox.ids() == ["1"]
        assert bench.queue() == [payload(2)]


def test_a_channel_without_credit_does_not_stop_another(url, bench, hub):
    with registered(Inbox(url, prefetch=1), hub) as inbox:
        other: list[Any] = []
        consumer = kombu.Consumer(
            inbox.connection.channel(), [kombu.Queue("other")], on_message=other.append
        )
        consumer.consume()
        bench.push("mail", payload(1), payload(2))
        receive(inbox, hub, ["1"])
        bench.push("other", payload("o", "other"))
        eventually(lambda: turn_of(hub) and other, 10, 0)
        other[0].ack()
        assert inbox.ids() == ["1"]
        inbox.messages[0].ack()
        receive(inbox, hub, ["1", "2"])
        inbox.ack_all()
    assert bench.queue() == []


def test_a_requeue_that_fails_is_kept_and_done_later(url, bench):
    """The connection breaks with it: the message is in exactly one place all the time."""
    bench.push("mail", payload(1))
    with Inbox(url) as inbox:
        inbox.receive(1)
        inbox.consumer.cancel()
        bench.client.client_kill_filter(_type="normal", skipme=True)
        inbox.messages[0].requeue()
        assert bench.queue() + bench.private() == [payload(1)]
    assert bench.queue() == [payload(1)]
    with Inbox(url) as inbox:
        inbox.receive(1)
        assert inbox.messages[0].headers["redelivered"] is True
        inbox.ack_all()
    assert bench.queue() == []
