"""Plain kombu without Celery: simple queues, channels, databases and threads of one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kombu
import pytest

from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.inbox import TRANSPORT, Inbox, publish


def left_over(bench: Bench) -> set[str]:
    """What an orderly end should not leave: owners, and jobs in private lists."""
    kinds = ("superfetch:owner", "superfetch:private", "superfetch:host")
    return {name for name in bench.key_names() if name.startswith(kinds)}


def test_a_simple_queue_hands_out_each_message_once_however_it_is_asked(url, bench):
    """A blocking get claims ahead."""
    with (
        kombu.Connection(url, transport=TRANSPORT) as connection,
        connection.SimpleQueue("mail") as queue,
    ):
        for number in range(6):
            queue.put(number)
        assert len(queue) == 6
        first = queue.get(timeout=5)
        second = queue.get_nowait()
        third = queue.get(timeout=5)
        assert [first.payload, second.payload, third.payload] == [0, 1, 2]
        first.ack()
        second.requeue()
        third.reject()
        said = []
        for _ in range(4):
            message = queue.get_nowait()
            said.append(message.payload)
            message.ack()
        assert said == [3, 4, 5, 1], "the requeued one from the back"
        for how in ({"block": False}, {"timeout": 0.1}):
            with pytest.raises(queue.Empty):
                queue.get(**how)
    assert left_over(bench) == set()
    assert bench.queue() == []


def test_channels_of_one_connection_share_an_owner_and_nothing_else(url, bench):
    """Each has its own prefetch, its own deliveries, and gives back its own at its close."""
    bench.push("mail", *(payload(n) for n in range(10)))
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        seen: list[list[kombu.Message]] = [[], []]
        channels = [connection.channel() for _ in seen]
        for channel, messages, prefetch in zip(channels, seen, (2, 3), strict=True):
            kombu.Consumer(
                channel, [kombu.Queue("mail")], prefetch_count=prefetch, on_message=messages.append
            ).consume()

        def drained() -> bool:
            if [len(messages) for messages in seen] != [2, 3]:
                connection.drain_events(timeout=1)
            return [len(messages) for messages in seen] == [2, 3]

        eventually(drained, every=0)
        [owner] = bench.registry.owners()
        assert len(bench.private(owner)) == 5
        seen[1][0].ack()
        channels[0].close()
        ids = [message.headers["id"] for message in seen[1]]
        assert len(bench.private(owner)) == 2, "the other channel's stay"
        assert {payload(n) for n in ids[1:]} == set(bench.private(owner))
        assert set(bench.registry.owners()) == {owner}
    assert len(bench.queue()) == 9
    assert left_over(bench) == set()


def test_connections_to_several_databases_are_an_owner_in_each(fresh_server):
    """What one gives back or acks never ends up in the other."""
    own = fresh_server()
    benches = [Bench(own.client(db)) for db in (0, 3)]
    for db, bench in zip((0, 3), benches, strict=True):
        bench.push("mail", *(payload(f"db{db}-{n}") for n in range(3)))
    inboxes = [Inbox(own.url(db)) for db in (0, 3)]
    for inbox in inboxes:
        inbox.receive(3)
    owners = [set(bench.registry.owners()) for bench in benches]
    assert [len(names) for names in owners] == [1, 1]
    assert owners[0] != owners[1]
    inboxes[0].ack_all()
    inboxes[0].close()
    assert left_over(benches[0]) == set()
    assert len(benches[1].private(owners[1].pop())) == 3, "the other's jobs are none of its own"
    inboxes[1].close()
    assert [len(bench.queue()) for bench in benches] == [0, 3]
    assert left_over(benches[1]) == set()


THREADS = 6
JOBS = 300


def test_consumers_in_threads_run_each_message_once(url, bench):
    """Each thread has its connection; some close early, and give back what they have not run."""
    bench.push("mail", *(payload(n) for n in range(JOBS)))
    ran: list[str] = []
    lock = threading.Lock()

    def consume(number: int) -> None:
        with Inbox(url, prefetch=5) as inbox:

            def run(message: kombu.Message) -> None:
                inbox.messages.append(message)
                if number % 2 and len(inbox.messages) > 20:
                    return  # this one will be closed with unacked messages in its hands
                with lock:
                    ran.append(message.headers["id"])
                message.ack()

            inbox.consumer.on_message = run
            while len(ran) < JOBS and (number % 2 == 0 or len(inbox.messages) < 24):
                inbox.turn(0.05)

    with ThreadPoolExecutor(THREADS) as threads:
        for future in [threads.submit(consume, number) for number in range(THREADS)]:
            future.result(timeout=60)
    assert sorted(ran, key=int) == [str(n) for n in range(JOBS)], "none lost, none twice"
    assert bench.queue() == []
    assert left_over(bench) == set()


def test_what_a_callback_raises_is_its_consumers_own_affair(url, bench):
    """A1: outside Celery nobody puts a message aside for it."""
    bench.push("mail", payload(1))

    def fail(_: kombu.Message) -> None:
        raise ZeroDivisionError

    with Inbox(url) as inbox:
        inbox.consumer.on_message = fail
        with pytest.raises(ZeroDivisionError):
            inbox.connection.drain_events(timeout=10)
    assert bench.queue() == [payload(1)]


def test_no_more_is_claimed_than_claim_limit_and_without_a_limit_one(url, bench):
    """Two consumers that are to share the work."""

    def held(**how: Any) -> int:
        bench.client.flushdb()
        bench.push("mail", *(payload(n) for n in range(10)))
        with Inbox(url, **how) as inbox:
            inbox.receive(1)
            return 10 - len(bench.queue())

    assert held() == 1
    assert held(prefetch=20) == 10
    assert held(prefetch=20, claim_limit=4) == 4
    assert held(prefetch=20, claim_limit=1) == 1
    assert held(prefetch=1) == 1


def test_two_simple_queues_share_what_waits_and_know_its_size(url, bench):
    """As in stock: the first reader took all, the second got none, and `qsize` raised a 404."""
    bench.push("mail", *(payload(n) for n in range(6)))
    with (
        kombu.Connection(url, transport=TRANSPORT) as one,
        kombu.Connection(url, transport=TRANSPORT) as two,
    ):
        readers = [connection.SimpleQueue("mail") for connection in (one, two)]
        for left in range(6, 0, -1):
            assert readers[0].qsize() == left
            readers[left % 2].get(timeout=5).ack()
        assert [reader.qsize() for reader in readers] == [0, 0], "it is empty, and it is there"
        for reader in readers:
            reader.close()


def test_an_ack_that_comes_early_leaves_a_copy_with_the_same_tag_alone(url, bench):
    """Celery acks a turn of its loop later, by the tag. A job copied by hand brings that twice."""
    publish(url, "mail", "one")
    bench.client.rpush("mail", bench.client.lindex("mail", 0))
    with kombu.Connection(url, transport=TRANSPORT) as connection:
        channel = connection.channel()
        queue = kombu.Queue("mail")(channel)
        first = queue.get()
        channel.qos.delivery(first.delivery_tag).ack()
        second = queue.get()
        first.ack()
        assert len(bench.held()) == 1
        second.ack()
        assert not bench.held()


def test_a_call_that_the_server_refuses_for_good_does_not_stop_a_consumer(url, bench, caplog):
    """It raised in each tick, before the claim."""
    with Inbox(url) as inbox:
        inbox.settle_in()
        owner = inbox.channel.fetch.owner
        bench.client.set("other", "no list")
        owner.deferred_calls.append(lambda: owner.client.lpush("other", "x"))
        bench.push("mail", payload(1))
        inbox.receive(1)
        inbox.ack_all()
        assert "Redis refused to settle a job of this consumer (WRONGTYPE" in caplog.text
        assert "Another program wrote to a key of celery_superfetch" in caplog.text
        assert owner.deferred_calls, "it is tried again"
        owner.deferred_calls.clear()


@pytest.fixture
def refusing(fresh_server):
    """A server, and a consumer that has closed its last channel while it refused all writes."""
    server = fresh_server()
    server.client().lpush("mail", payload(1))
    inbox = Inbox(server.url(), prefetch=1).settle_in()
    inbox.receive(1)
    server.client().config_set("min-replicas-to-write", 1)
    inbox.close()
    return server, inbox.channel.fetch.owner


def leaving() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "superfetch-leave"]


def test_a_channel_that_closes_while_the_server_refuses_requeues_its_jobs_later(refusing, caplog):
    """They stayed until the process ended, with heartbeats: no peer recovered them either."""
    server, owner = refusing
    there = Bench(server.client())
    assert (there.queue(), len(there.private(owner))) == ([], 1)
    assert [thread.daemon for thread in leaving()] == [True]
    there.client.config_set("min-replicas-to-write", 0)
    eventually(lambda: there.queue() == [payload(1)], 15)
    eventually(lambda: not there.registry.owners(), 5)
    assert left_over(there) == set()
    eventually(lambda: not leaving())
    assert not owner.name


def test_a_new_channel_continues_with_an_owner_that_could_not_leave(refusing):
    server, owner = refusing
    there, name = Bench(server.client()), owner.name
    server.client().config_set("min-replicas-to-write", 0)
    with Inbox(server.url(), prefetch=1) as inbox:
        inbox.receive(1)
        assert inbox.channel.fetch.owner.name == name
        eventually(lambda: not leaving())
        assert set(there.registry.owners()) == {name}, "it does not leave beside the new channel"
        inbox.ack_all()
    assert left_over(there) == set()


def test_a_process_may_end_while_an_owner_cannot_leave(refusing):
    server, owner = refusing
    server.client().config_set("min-replicas-to-write", 0)
    owner.leave_for_good()
    there = Bench(server.client())
    assert (there.queue(), left_over(there)) == ([payload(1)], set())
    eventually(lambda: not leaving())


def test_a_job_that_lands_just_before_an_owner_unregisters_is_requeued(url, bench, monkeypatch):
    """A read that a proxy keeps brings it. The owner stayed registered with it, and sent heartbeats
    for it until the process ended."""
    inbox = Inbox(url, prefetch=1).settle_in()
    owner = inbox.channel.fetch.owner
    session = owner.heartbeat_session
    leave = session.leave

    def land_and_leave(tombstone_s: float) -> int:
        monkeypatch.setattr(session, "leave", leave)
        bench.land(owner, "mail", payload(1))
        return leave(tombstone_s)

    monkeypatch.setattr(session, "leave", land_and_leave)
    inbox.close()
    assert owner.name, "it has to stay"
    eventually(lambda: bench.queue() == [payload(1)], 15)
    eventually(lambda: not bench.registry.owners(), 5)
    eventually(lambda: not leaving())
