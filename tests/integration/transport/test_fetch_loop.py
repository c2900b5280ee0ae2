"""What a fetch loop does next: it is decided without an effect, and carried out by the tick."""

from __future__ import annotations

from time import process_time

import pytest

from celery_superfetch.transport.fetch.fetch_loop import Action
from support.driver import Driver
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.inbox import Inbox


@pytest.fixture
def inbox(url):
    with Inbox(url, "mail", prefetch=2) as inbox:
        yield inbox


def test_a_queue_that_was_not_looked_at_is_claimed_from_and_asking_claims_nothing(inbox, bench):
    bench.push("mail", payload(1))
    fetch = inbox.channel.fetch
    assert [fetch.next_action() for _ in range(3)] == [Action.CLAIM] * 3
    assert bench.queue("mail") == [payload(1)]
    assert not fetch.backlog
    fetch.tick()
    assert not bench.queue("mail")
    assert len(fetch.backlog) == 1


def test_empty_queues_are_waited_on(inbox):
    fetch = inbox.channel.fetch
    fetch.upkeep.register(inbox.channel.lists.expires)
    fetch.tick()
    assert fetch.next_action() is Action.BLOCK
    assert fetch.reads.armed, "the tick that found them empty waits already"


def test_a_full_prefetch_leaves_nothing_to_do(inbox, bench):
    bench.push("mail", payload(1), payload(2), payload(3))
    inbox.receive(2)
    inbox.settle_in()
    assert inbox.channel.fetch.next_action() is Action.WAIT
    assert bench.queue("mail") == [payload(3)]


def test_a_job_that_has_landed_is_claimed(inbox, bench):
    inbox.settle_in()
    fetch = inbox.channel.fetch
    [read] = [read for read in fetch.reads.armed if read.queue_list == "mail"]
    bench.push("mail", payload(1))
    eventually(lambda: not bench.queue("mail"), message="it has landed")
    fetch.reads.call_off([read])
    assert fetch.next_action() is Action.CLAIM
    assert len(fetch.backlog) == 1
    assert not fetch.backlog.ready


def test_a_suspect_comes_before_other_jobs_and_the_stop_before_a_suspect(inbox, bench):
    bench.push("mail", payload(1))
    fetch = inbox.channel.fetch
    fetch.upkeep.register(inbox.channel.lists.expires)
    driver = Driver.of(fetch.owner)
    driver.hear_of_suspects(["mail"])
    assert fetch.next_action() is Action.SOLO
    fetch.tick()
    assert len(fetch.backlog) == 1, "no suspect was there: other jobs may be claimed in this tick"
    driver.hear_of_suspects(["mail"])
    fetch.owner.stopping = True
    assert [fetch.next_action() for _ in range(3)] == [Action.STOP] * 3
    assert len(fetch.backlog) == 1
    fetch.tick()
    assert not fetch.backlog
    assert bench.queue("mail") == [payload(1)]


def test_without_queues_what_is_pending_is_sent(inbox, bench):
    inbox.settle_in()
    bench.push("mail", payload(1))
    [message] = inbox.receive(1) and inbox.messages
    fetch = inbox.channel.fetch
    inbox.consumer.cancel()
    driver = Driver.of(fetch.owner)
    driver.finish(message.delivery.lease.claimed)
    assert fetch.next_action() is Action.SEND
    assert driver.has_unsent
    fetch.tick()
    assert not driver.has_unsent
    assert not bench.client.exists(bench.database.keys.private(fetch.owner.name))


def test_a_requeue_that_the_server_refuses_keeps_the_loop_from_nothing(inbox, bench):
    """Sent again at each tick, it kept the worker from waiting on its queues for as long as the
    refusal lasted: jobs came up to a second late."""
    inbox.settle_in()
    bench.push("mail", payload(1))
    [message] = inbox.receive(1) and inbox.messages
    fetch = inbox.channel.fetch
    driver = Driver.of(fetch.owner)
    bench.client.set(bench.keys.queue("mail"), "a text")
    driver.requeue([message.delivery.lease.job])
    bench.client.delete(bench.keys.queue("mail"))
    eventually(lambda: fetch.tick() or fetch.next_action() is Action.BLOCK, within=3)
    assert not driver.has_unsent
    assert bench.private(fetch.owner.name) == [payload(1)]

    driver.retry_requeues_now()
    assert fetch.next_action() is Action.SEND
    fetch.tick()
    eventually(lambda: bench.private(fetch.owner.name) == [])


def test_a_closed_channel_has_no_job_whose_requeue_is_refused(inbox, bench):
    """Such a job counted as waiting in this process as long as that lived: with a thousand of them
    the next channel claimed nothing more."""
    inbox.settle_in()
    bench.push("mail", payload(1))
    [message] = inbox.receive(1) and inbox.messages
    fetch = inbox.channel.fetch
    Driver.of(fetch.owner).reserve(message.delivery.lease.job)
    bench.client.set(bench.keys.queue("mail"), "a text")
    inbox.channel.qos.restore_unacked()
    assert bench.private(fetch.owner.name) == [payload(1)]
    assert not message.delivery.is_open
    bench.client.delete(bench.keys.queue("mail"))


def test_a_tick_without_a_change_costs_no_more_with_hundreds_of_queues(url):
    """If each tick computed anew what to wait on, five hundred queues would cost thirty times as
    much as one."""

    def cost(*queues: str) -> float:
        with Inbox(url, *queues, prefetch=4) as inbox:
            fetch = inbox.settle_in().channel.fetch
            assert fetch.next_action() is Action.BLOCK
            began = process_time()
            for _ in range(300):
                fetch.tick()
            return process_time() - began

    assert cost(*(f"queue-{n}" for n in range(500))) < 8 * cost("mail")
