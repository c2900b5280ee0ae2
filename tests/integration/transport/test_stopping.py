"""A process that is told to stop gives back what waits in the old order."""

from __future__ import annotations

from support.waiting import eventually
from support.workers.bench import payload
from support.workers.inbox import Inbox


def test_what_a_read_has_claimed_by_then_overtakes_nothing_that_waits(url, bench):
    """It came back to the front, when the others had gone there."""
    raws = [payload(n) for n in range(4)]
    bench.push("mail", *raws[:3])
    with Inbox(url) as inbox:
        inbox.receive(3)
        fetch = inbox.channel.fetch
        for job in fetch.owner.in_flight.jobs:
            fetch.owner.wait(job)
        inbox.settle_in()
        assert fetch.reads.armed
        bench.push("mail", raws[3])
        eventually(lambda: bench.landed(fetch.owner), message="a read has it")
        fetch.owner.heart.stopping = True
        inbox.settle_in()
        assert bench.queue() == raws
        assert bench.private(fetch.owner) == bench.landed(fetch.owner) == []
