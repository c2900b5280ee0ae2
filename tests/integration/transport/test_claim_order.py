"""In which order a channel claims from its queue lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kombu
import pytest

from celery_superfetch.store.private_lists import CLAIM_MAX_BYTES
from celery_superfetch.transport.fetch.queue_lists import QueueLists
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

QUEUES = [f"q{n}" for n in range(5)]


def receive(inbox: Inbox, count: int) -> list[str]:
    """Ids of the next jobs, each acked as soon as it is here."""
    first = len(inbox.messages)
    for number in range(first + 1, first + count + 1):
        inbox.receive(number)
        inbox.messages[-1].ack()
    return inbox.ids()[first:]


def make_busy(bench: Bench) -> None:
    """Four jobs in each queue."""
    for queue in QUEUES:
        bench.push(queue, *(payload(f"{queue} {n}", queue) for n in range(4)))


def test_equal_queues_are_served_in_turn(url, bench):
    make_busy(bench)
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        assert receive(inbox, 20) == [f"{queue} {n}" for n in range(4) for queue in QUEUES]


def test_a_less_urgent_queue_is_claimed_from_when_the_first_is_empty(url, bench):
    bench.push("q0", *(payload(f"first {n}", "q0") for n in range(6)))
    bench.push("q4\x06\x169", payload("last", "q4"))
    with Inbox(url, *QUEUES, prefetch=1, queue_order_strategy="sorted") as inbox:
        assert receive(inbox, 7) == [*(f"first {n}" for n in range(6)), "last"]


def test_an_urgent_job_comes_before_others_that_were_there_first(url, bench):
    bench.push("q0\x06\x163", *(payload(f"late {n}", "q0") for n in range(6)))
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, 5)
        bench.push("q3", payload("urgent", "q3"))
        assert receive(inbox, 2) == ["urgent", "late 5"]


def test_equal_queues_are_served_in_turn_when_there_is_room_for_more_than_one_again(url, bench):
    make_busy(bench)
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, 5)
        inbox.consumer.qos(prefetch_count=3)
        inbox.receive(8)
        assert {*inbox.ids()[-3:]} == {"q0 1", "q1 1", "q2 1"}


@pytest.mark.parametrize("others", [["q0"], [*QUEUES, "more"]])
def test_the_queues_may_change_meanwhile(url, bench, others):
    bench.push("q0", *(payload(n, "q0") for n in range(7)))
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, 5)
        for queue in set(others) - set(QUEUES):
            inbox.consumer.add_queue(kombu.Queue(queue))
            inbox.consumer.consume()
        for queue in set(QUEUES) - set(others):
            inbox.consumer.cancel_by_queue(queue)
        last = others[-1] + "\x06\x169"
        bench.push(last, payload("last", others[-1]))
        assert receive(inbox, 3) == ["5", "6", "last"]


def test_a_claim_that_took_as_many_bytes_as_it_may_has_not_fallen_short(bench):
    owner, large = bench.owner().owner, payload("x" * (CLAIM_MAX_BYTES // 4))
    bench.push("mail", *3 * [large])
    claims = bench.driver.claim(owner, ["mail"], 3, 1, [])
    assert len(claims.jobs) == 2
    assert not claims.fell_short(3)
    rest = bench.driver.claim(owner, ["mail"], 3, 1, [])
    assert len(rest.jobs) == 1
    assert rest.fell_short(3)


def test_many_queues_are_consumed_and_given_up_without_a_look_at_all_for_each(url, monkeypatch):
    """A worker of 1,000 queues stood still for 5 s as it stopped, and at each reconnect."""
    served: list[int] = []
    serve = QueueLists.set_queues

    def count(lists: QueueLists, queues: Mapping[str, list[str]], *args: Any) -> None:
        served.append(len(queues))
        serve(lists, queues, *args)

    monkeypatch.setattr(QueueLists, "set_queues", count)
    with Inbox(url, *map(str, range(50)), "mail") as inbox:
        inbox.turn()
        inbox.consumer.cancel_by_queue("mail")
        inbox.turn()
        inbox.consumer.cancel()
    assert served == [51, 50]


def test_a_channel_that_closes_asks_a_lost_server_no_more_often_for_many_queues(
    fresh_server, caplog
):
    """What Requeue failed was tried again for each: at a server that hangs, a worker of 20
    queues needed 24 times its ``socket_timeout`` to let go of its connection."""
    server = fresh_server()
    with Inbox(server.url(), *map(str, range(20)), "mail", prefetch=4) as inbox:
        server.client().lpush("mail", *map(payload, range(4)))
        inbox.receive(1)
        assert len(inbox.channel.fetch.backlog) == 3
        server.kill()
    assert caplog.text.count("Requeue failed") <= 3
