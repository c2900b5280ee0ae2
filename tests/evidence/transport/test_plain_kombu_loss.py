"""A consumer of kombu alone that dies, or loses a reply, where no worker does; and one that has so
many jobs that it takes its time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import kombu
import pytest

from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import TRANSPORT, Inbox, publish


def test_a_get_whose_reply_was_lost_is_found_by_the_next(fresh_server):
    """Nothing but gets: no consumer's loop compares the private lists with what is held."""
    own = fresh_server()
    bench = Bench(own.client())
    options = {"socket_timeout": 0.3}
    with kombu.Connection(own.url(), transport=TRANSPORT, transport_options=options) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        assert queue.get() is None, "registered by now"
        bench.push("mail", payload(1))
        own.pause()
        with pytest.raises(connection.connection_errors):
            queue.get()
        own.resume()
        eventually(lambda: not bench.queue(), message="the control: claimed all the same")
        message = queue.get()
        assert message is not None
        message.ack()
    assert not [name for name in bench.key_names() if ":owner" in name or ":private" in name]


DIES_WITH_ITS_ACK = """
import os, sys, kombu

def end(message):
    if sys.argv[3]:
        message.ack()
    os.kill(os.getpid(), 9)

connection = kombu.Connection(sys.argv[1], transport=sys.argv[2])
kombu.Consumer(connection, [kombu.Queue("mail")], on_message=end).consume()
while True:
    connection.drain_events(timeout=30)
"""


@pytest.mark.parametrize("acked", [True, False])
def test_an_ack_arrives_although_nobody_lives_to_read_the_answer(url, bench, acked):
    """The control: what was not acked stays."""
    bench.push("mail", payload(1))
    command = [sys.executable, "-c", DIES_WITH_ITS_ACK, url, TRANSPORT, "ack" if acked else ""]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGKILL
    [owner] = bench.registry.owners()
    left = [] if acked else [payload(1)]
    eventually(lambda: bench.private(owner) == left)
    always(lambda: bench.private(owner) == left, during=0.3)


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
