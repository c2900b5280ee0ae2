"""So many jobs that it takes its time."""

from __future__ import annotations

import json

import kombu

from support.workers.bench import payload
from support.workers.inbox import TRANSPORT, Inbox, publish


def test_basic_get_passes_however_much_junk(url, bench):
    """E3. It called itself for each item: 1,500 of them were a RecursionError."""
    bench.push("mail", *(b"junk %d" % number for number in range(1500)))
    publish(url, "mail", "one")
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        message = kombu.Queue("mail")(connection.channel()).get()
        assert message.decode() == "one"
        message.ack()
    assert bench.stat("killed") == 1500


def test_ten_thousand_jobs_pass_through_in_order(url, bench):
    count = 10_000
    template = json.loads(payload(0))
    raws = []
    for n in range(count):
        template["headers"]["id"] = template["properties"]["delivery_tag"] = str(n)
        raws.append(json.dumps(template).encode())
    bench.push("mail", *raws)
    with Inbox(url, prefetch=50) as inbox:
        inbox.consumer.on_message = lambda message: (inbox.messages.append(message), message.ack())
        inbox.receive(count, within=100)
        assert [m.headers["id"] for m in inbox.messages] == [str(n) for n in range(count)]
    assert bench.queue() == []
