"""Claiming and waiting: within the prefetch, woken by the job, and without polling."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from celery_superfetch.transport.fetch import blocking_reads
from support.servers.commands import blocked
from support.servers.faults import kill_connections
from support.waiting import always, eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox, publish


@contextmanager
def looping(*inboxes: Inbox) -> Iterator[None]:
    """Each consumer turns in a thread of its own, as workers do."""
    over = threading.Event()

    def loop(inbox: Inbox) -> None:
        while not over.is_set():
            inbox.turn(0.2)

    threads = [threading.Thread(target=loop, args=(inbox,)) for inbox in inboxes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("prefetch", [1, 4])
def test_no_more_is_claimed_than_the_prefetch_allows(url, bench, prefetch):
    bench.push("mail", *(payload(n) for n in range(20)))
    with Inbox(url, prefetch=prefetch) as inbox:
        inbox.receive(prefetch)
        inbox.settle_in()
        assert len(inbox.messages) == len(bench.held()) == prefetch
        inbox.messages[0].ack()
        inbox.receive(prefetch + 1)
        inbox.settle_in()
        assert len(inbox.messages) == prefetch + 1
        assert len(bench.held()) == prefetch


def test_no_more_is_claimed_than_the_prefetch_allows_by_blocking_reads_either(url, bench):
    """Many lists wait at once, and all of them are served in one instant."""
    queues = [f"q{n}" for n in range(4)]
    with Inbox(url, *queues, prefetch=2) as inbox:
        inbox.settle_in()
        with bench.client.pipeline(transaction=True) as pipe:
            for queue in queues:
                pipe.lpush(queue, payload(queue, queue))
            pipe.execute()
        inbox.receive(2)
        inbox.settle_in()
        assert len(inbox.messages) == len(bench.held()) == 2
        assert sum(len(bench.queue(queue)) for queue in queues) == 2
        inbox.ack_all()
        inbox.receive(4)
        assert sorted(inbox.ids()) == queues


@pytest.mark.parametrize("queue", ["first", "last", "first\x06\x169"])
def test_an_idle_consumer_is_woken_by_the_job(url, bench, queue, monkeypatch):
    # It is not woken by the end of its wait.
    monkeypatch.setattr(blocking_reads, "BLOCK_TIMEOUT", 600)
    with Inbox(url, "first", "last") as inbox, looping(inbox):
        eventually(lambda: blocked(bench.client) >= 1)
        always(lambda: not inbox.messages, 0.3)
        bench.push(queue, payload(1))
        eventually(lambda: inbox.messages)


def test_a_job_wakes_exactly_one_of_several_idle_consumers(url, bench):
    """Each runs on its own; nobody gets what another one has."""
    inboxes = [Inbox(url, prefetch=1) for _ in range(5)]
    with looping(*inboxes):
        eventually(lambda: blocked(bench.client) >= len(inboxes))
        before = _calls(bench)
        bench.push("mail", payload(1))
        eventually(lambda: any(inbox.messages for inbox in inboxes))
        always(lambda: sum(len(inbox.messages) for inbox in inboxes) == 1, 0.5)
        after = _calls(bench)
    claims = after.get("evalsha", 0) - before.get("evalsha", 0)
    assert claims <= 2, "the others slept on"
    for inbox in inboxes:
        inbox.ack_all()
        inbox.close()


def test_jobs_for_all_reach_all_and_each_job_one(url, bench):
    inboxes = [Inbox(url, prefetch=1) for _ in range(4)]
    with looping(*inboxes):
        eventually(lambda: blocked(bench.client) >= len(inboxes))
        bench.push("mail", *(payload(n) for n in range(4)))
        eventually(lambda: all(len(inbox.messages) == 1 for inbox in inboxes))
        assert sorted(chain(*(inbox.ids() for inbox in inboxes))) == ["0", "1", "2", "3"]
    for inbox in inboxes:
        inbox.close()


def test_an_idle_consumer_does_not_poll(url, bench):
    with Inbox(url, "mail", "slow") as inbox, looping(inbox):
        eventually(lambda: blocked(bench.client) == 4, message="of 2 queues of 4 steps, and tracks")
        eventually(lambda: len(inbox.channel.fetch.reads._tracker.empty) == 4, message="tracks")
        before = sum(_calls(bench).values())
        always(lambda: blocked(bench.client) == 4, during=2, every=2)
        commands = sum(_calls(bench).values()) - before
        assert commands <= 6, "the test's own, and a heartbeat"


def test_a_consumer_that_comes_back_gets_what_is_urgent_first(url):
    """It was idle when it went: what waits now is not left to reads, of which any may be first."""
    with Inbox(url) as inbox:
        inbox.settle_in()
        inbox.consumer.cancel()
        for priority in (6, 9, 0, 3):
            publish(url, "mail", priority, priority=priority)
        inbox.consumer.consume()
        assert inbox.receive(4) == [0, 3, 6, 9]


def _calls(bench: Bench) -> dict[str, int]:
    """Command -> how often it was called."""
    stats = bench.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): row["calls"] for name, row in stats.items()}


def test_what_landed_as_the_last_queue_was_given_up_goes_back(url, bench):
    """The reply to its read was lost. It stayed until the consumer claimed from some queue again:
    for as long as it lived, if need be."""
    with Inbox(url) as inbox:
        eventually(lambda: inbox.turn() or blocked(bench.client))
        bench.push("mail", payload(1))
        eventually(lambda: not bench.queue(), message="it has landed")
        kill_connections(bench.client)
        inbox.consumer.cancel()
        inbox.turn()
        assert bench.queue() == [payload(1)]
