"""What becomes of messages that are not acked: requeue, close, and the flag they come back with."""

from __future__ import annotations

import json

import kombu
import pytest
from kombu.common import Broadcast

from support.driver import Driver
from support.interruption import interrupted
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.inbox import TRANSPORT, Inbox, publish


def test_a_rejected_message_is_requeued_to_the_back(url, bench):
    publish(url, "mail", "one", "two", "three")
    one, two, three = bench.queue()
    with Inbox(url, prefetch=1) as inbox:
        inbox.receive(1)
        inbox.consumer.cancel()
        assert bench.queue() == [two, three]
        inbox.messages[0].reject(requeue=True)
        assert bench.queue() == [two, three, one]


def test_a_closed_channel_gives_everything_back_in_the_old_order(url, bench):
    raws = [payload(n) for n in range(130)]
    bench.push("mail", *raws)
    with Inbox(url) as inbox:
        inbox.receive(100)
        [owner] = bench.registry.owners()
        assert len(bench.private(owner)) >= 100
    assert bench.queue() == raws
    assert bench.registry.owners() == {}
    assert not [name for name in bench.key_names() if owner in name], "no key of its own is left"


def test_what_was_acked_is_not_given_back(url, bench):
    raws = [payload(n) for n in range(10)]
    bench.push("mail", *raws)
    with Inbox(url) as inbox:
        inbox.receive(10)
        for message in inbox.messages[::2]:
            message.ack()
    assert bench.queue() == raws[1::2]


def test_several_queues_and_priorities_go_back_to_where_they_came_from(url, bench):
    lists = ["mail", "mail\x06\x163", "slow", "slow\x06\x169"]
    for name in lists:
        bench.push(name, payload(f"{name} 1"), payload(f"{name} 2"))
    with Inbox(url, "mail", "slow") as inbox:
        inbox.receive(8)
    for name in lists:
        assert bench.queue(name) == [payload(f"{name} 1"), payload(f"{name} 2")]


def test_closing_twice_is_harmless(url, bench):
    publish(url, "mail", "one")
    inbox = Inbox(url)
    inbox.receive(1)
    inbox.channel.close()
    inbox.channel.close()
    inbox.close()
    inbox.close()
    assert len(bench.queue()) == 1
    assert bench.registry.owners() == {}


def test_an_ack_after_the_channel_is_closed_finds_its_way(url, bench):
    """Celery's pool finishes a job while the consumer reconnects."""
    bench.push("mail", payload("running"), payload("waiting"))
    inbox = Inbox(url)
    inbox.receive(2)
    running = inbox.messages[0]
    driver = Driver.of(inbox.channel.fetch.owner)
    assert driver.start(running.delivery.job)
    [owner] = bench.registry.owners()
    inbox.channel.close()
    assert bench.queue() == [payload("waiting")]
    assert bench.private(owner) == [payload("running")], "it runs, and stays its owner's"
    assert set(bench.registry.owners()) == {owner}
    running.ack()
    assert bench.private(owner) == []
    inbox.close()


def test_what_outlives_its_channel_counts_against_the_prefetch_of_the_next(url, bench):
    """Else each lost connection would reserve more jobs behind those that run."""
    bench.push("mail", *(payload(n) for n in range(4)))
    first = Inbox(url, prefetch=2)
    first.receive(2)
    driver = Driver.of(first.channel.fetch.owner)
    assert driver.start(first.messages[0].delivery.job)
    first.channel.close()
    assert bench.queue() == [payload(n) for n in (1, 2, 3)]
    with Inbox(url, prefetch=2) as second:
        second.receive(1)
        second.settle_in()
        assert len(second.messages) == 1, "the other place is taken"
        first.messages[0].ack()
        second.receive(2)
    first.close()


def test_what_comes_back_is_marked_and_its_bytes_are_not_changed(url, bench):
    publish(url, "mail", "one")
    [raw] = bench.queue()
    with Inbox(url) as inbox:
        inbox.receive(1)
        assert not inbox.messages[0].delivery_info.get("redelivered")
    assert bench.queue() == [raw]
    with Inbox(url) as inbox:
        inbox.receive(1)
        message = inbox.messages[0]
        assert message.delivery_info["redelivered"] is True
        assert message.headers["redelivered"] is True, "where Celery's tasks see it"
        assert bench.private() == [raw]
        message.ack()
    publish(url, "mail", "two")
    with Inbox(url) as inbox:
        inbox.receive(1)
        assert not inbox.messages[0].delivery_info.get("redelivered"), "another one is not"


@pytest.mark.parametrize("headers", [True, False], ids=["", "without headers"])
def test_a_requeued_message_is_marked_where_it_is_read_without_ack(url, bench, headers):
    whole = json.loads(payload(1))
    if not headers:
        del whole["headers"]
    bench.client.lpush("mail", json.dumps(whole))
    with Inbox(url) as inbox:
        inbox.receive(1)
        inbox.messages[0].requeue()
    publish(url, "mail", "fresh")
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        queue = kombu.Queue("mail")(connection.channel())
        again, fresh, none = (queue.get(no_ack=True) for _ in range(3))
    assert again.delivery_info["redelivered"] is again.headers["redelivered"] is True
    assert "redelivered" not in {**fresh.headers, **fresh.delivery_info}
    assert none is None


@pytest.mark.parametrize("headers", [True, False], ids=["", "without headers"])
def test_a_recovered_message_is_marked_too(url, bench, headers):
    whole = json.loads(payload(1))
    if not headers:
        del whole["headers"]
    raw = json.dumps(whole).encode()
    bench.dead_owner([raw])
    bench.reaper().reap()
    with Inbox(url) as inbox:
        inbox.receive(1)
        [message] = inbox.messages
        assert message.delivery_info["redelivered"] is message.headers["redelivered"] is True
        assert message.headers["superfetch"] == {
            "recoveries": 1,
            "strikes": 0,
            "requeues": 0,
            "stops": 0,
        }
        inbox.ack_all()
        assert bench.counters(raw).recoveries == 0, "settled, its counters are cleared"
    assert not list(bench.dead_set.find())


def test_what_a_message_says_of_its_deliveries_is_not_believed(url, bench):
    bench.push("mail", payload(1, superfetch={"strikes": 7}))
    with Inbox(url) as inbox:
        inbox.receive(1)
        assert "superfetch" not in inbox.messages[0].headers
        inbox.ack_all()


@pytest.mark.parametrize("body", [[], {}, {"a": []}, "ö\x00", None, 1.0, 12345678901234567890])
def test_a_redelivery_says_what_was_published(url, body):
    """Lua's cjson would make {} of [] and 1.0 of 1: no script may rewrite a message."""
    publish(url, "mail", body)
    for _ in range(2):
        with Inbox(url) as inbox:
            assert inbox.receive(1) == [body]


def test_cancelling_a_queue_gives_its_waiting_messages_back(url, bench):
    for queue in ("mail", "slow"):
        bench.push(queue, *(payload(f"{queue} {n}") for n in range(10)))
    with Inbox(url, "mail", "slow") as inbox:
        inbox.receive(1)
        inbox.consumer.cancel_by_queue("slow")
        delivered = [id for id in inbox.ids() if id[:4] == "slow"]
        assert len(bench.queue("slow")) == 10 - len(delivered)
        waiting = [json.loads(raw)["headers"]["id"] for raw in bench.queue("slow")]
        assert waiting == [f"slow {n}" for n in range(len(delivered), 10)]
        inbox.receive(10 + len(delivered))
        assert sum(id[:4] == "mail" for id in inbox.ids()) == 10


def test_a_queue_that_is_cancelled_can_be_consumed_again(url, bench):
    with Inbox(url) as inbox:
        inbox.settle_in()
        inbox.consumer.cancel()
        publish(url, "mail", "one")
        inbox.settle_in()
        assert len(bench.queue()) == 1, "nobody takes it meanwhile"
        inbox.consumer.consume()
        assert inbox.receive(1) == ["one"]


def test_purging_and_deleting_a_queue_leaves_what_is_in_flight(url, bench):
    publish(url, "mail", "one", "two")
    with Inbox(url, prefetch=1) as inbox:
        inbox.receive(1)
        assert inbox.channel.queue_purge("mail") == 1
        assert len(bench.private()) == 1
        inbox.messages[0].ack()
    assert bench.queue() == []


def test_a_reaped_owner_does_not_deliver_what_was_given_to_somebody_else(url, bench):
    """Taken for dead with claimed messages still waiting for the loop: they run elsewhere."""
    raws = [payload(n) for n in range(10)]
    bench.push("mail", *raws)
    with Inbox(url) as inbox:
        inbox.receive(1)
        [owner] = bench.registry.owners()
        assert bench.mark(owner, "silent")
        bench.reaper().reap()
        assert bench.queue() == raws
        inbox.channel.owner.heartbeat()  # by which it learns its fate
        inbox.receive(11)
        assert inbox.ids() == ["0", *(str(n) for n in range(10))], (
            "the first ran twice, no other did"
        )
        inbox.ack_all()
        inbox.settle_in()
        assert bench.queue() == []


def test_a_lost_connection_loses_nothing_and_doubles_nothing(url, bench):
    raws = [payload(n) for n in range(20)]
    bench.push("mail", *raws)
    with Inbox(url, prefetch=5) as inbox:
        inbox.receive(5)
        bench.client.client_kill_filter(_type="normal", skipme=True)
        inbox.ack_all()

    seen = inbox.ids()
    with Inbox(url) as other:
        other.receive(15)
        other.settle_in()
        seen += other.ids()
        other.ack_all()
    assert sorted(seen, key=int) == [str(n) for n in range(20)]
    assert bench.queue() == []


def test_a_connection_without_a_server_raises_what_kombu_can_mend():
    connection = kombu.Connection("redis://127.0.0.1:1/0", transport=TRANSPORT)
    with pytest.raises(connection.connection_errors):
        kombu.Queue("mail")(connection.channel()).get()


def test_what_its_consumer_lets_go_goes_back_at_once_and_cannot_start(url, bench):
    """A worker that is told to stop: the channel stays open for the jobs that run."""
    raws = [payload(n) for n in range(8)]
    bench.push("mail", *raws)
    with Inbox(url, prefetch=6) as inbox:
        inbox.receive(4)
        running, _unasked, *waiting = inbox.messages
        driver = Driver.of(inbox.channel.fetch.owner)
        jobs = [message.delivery.job for message in (running, *waiting)]
        for job in jobs:
            driver.reserve(job)
        assert driver.start(jobs[0])
        inbox.channel.owner.stopping = True
        assert inbox.channel.qos.requeue_waiting() == 4, "two are not even delivered"
        assert bench.queue() == raws[2:]
        assert not any(driver.start(job) for job in jobs[1:])
        inbox.settle_in()
        assert bench.queue() == raws[2:], "it claims nothing more"
        for message in inbox.messages:
            message.ack()  # that of what went back removes nothing
        assert bench.queue() == raws[2:]
        eventually(lambda: bench.private() == [])


def test_what_a_read_has_claimed_by_then_overtakes_nothing_that_waits(url, bench):
    """It came back to the front, when the others had gone there."""
    raws = [payload(n) for n in range(4)]
    bench.push("mail", *raws[:3])
    with Inbox(url) as inbox:
        inbox.receive(3)
        fetch = inbox.channel.fetch
        driver = Driver.of(fetch.owner)
        for job in driver:
            driver.reserve(job)
        inbox.settle_in()
        assert fetch.reads.armed
        bench.push("mail", raws[3])
        eventually(lambda: bench.landed(fetch.owner), message="a read has it")
        fetch.owner.stopping = True
        inbox.settle_in()
        assert bench.queue() == raws
        assert bench.private(fetch.owner) == bench.landed(fetch.owner) == []


def test_a_close_requeues_although_a_broadcast_queue_cannot_be_deleted(proxy, bench):
    """kombu deletes the binding of such a queue first, and the server is away. The other channel of
    the connection is closed, too, and what they held is sent as soon as there is a server."""
    bench.push("mail", payload(1))
    bench.push("slow", payload(2))
    inbox = Inbox(proxy.url(), "mail", Broadcast("news", queue="news.mine"), prefetch=1)
    other = kombu.Consumer(
        inbox.connection.channel(),
        [kombu.Queue("slow")],
        prefetch_count=1,
        on_message=inbox.messages.append,
    )
    other.consume()
    inbox.receive(2)
    upstream, proxy.upstream = proxy.upstream, ("127.0.0.1", 1)
    proxy.cut()
    inbox.connection.collect()  # Celery's close after a lost connection
    assert inbox.channel.closed
    assert other.channel.closed
    proxy.upstream = upstream
    with Inbox(proxy.url(), "mail", "slow", prefetch=2) as again:
        again.receive(2)
        assert sorted(again.ids()) == ["1", "2"]


@pytest.mark.since("7.2", "before, a server cannot tell connections of this package from others")
def test_a_close_that_is_interrupted_as_it_ends_its_reads_requeues_all_the_same(proxy, bench):
    """A signal handler raises while the close waits for the end of a blocking read, before kombu's
    close. The process continues with another consumer, of the same owner."""
    bench.push("mail", payload(1))
    inbox = Inbox(proxy.url(), prefetch=5)
    inbox.receive(1)
    inbox.settle_in()
    assert inbox.channel.fetch.reads.armed
    proxy.hold_at(lambda words: b"UNBLOCK" in words, carried_out=False)
    with interrupted():
        inbox.connection.close()
    bench.push("mail", payload(2))
    with Inbox(proxy.url(), prefetch=5) as other:
        other.receive(2)
        assert sorted(other.ids()) == ["1", "2"]


@pytest.mark.since("7.2", "before, a server cannot tell connections of this package from others")
def test_a_job_that_a_read_brings_after_an_interrupted_cancel_is_requeued(proxy, bench):
    """A signal handler raises while the cancel of a consumer waits for the end of its read, which
    so goes on. The channel has another consumer."""
    inbox = Inbox(proxy.url(), "mail", "slow", prefetch=5)
    inbox.settle_in()
    assert {"mail", "slow"} <= {read.queue_list for read in inbox.channel.fetch.reads.armed}
    proxy.hold_at(lambda words: b"UNBLOCK" in words, carried_out=False)
    with interrupted():
        inbox.consumer.cancel_by_queue("mail")
    with bench.client.pipeline() as both:
        for queue in ("slow", "mail"):
            both.lpush(queue, payload(queue))
        both.execute()
    for _ in range(3):
        inbox.turn()  # raises nothing
    inbox.receive(1)
    assert inbox.ids() == ["slow"]
    assert bench.queue() == [payload("mail")]
    inbox.close()
    assert bench.queue() == [payload("mail")]


def test_a_close_that_is_interrupted_requeues_all_the_same(proxy, bench):
    """A signal handler raises while kombu waits for the delete of the binding."""
    bench.push("mail", payload(1))
    inbox = Inbox(proxy.url(), "mail", Broadcast("news", queue="news.mine"), prefetch=1)
    inbox.receive(1)
    proxy.hold_at(lambda words: b"_kombu.binding.news" in words, carried_out=True)
    with interrupted():
        inbox.channel.close()
    assert bench.queue() == [payload(1)]
    inbox.close()
