"""A claim names no more lists than the last ones needed, and finds what all would give."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import kombu
import pytest

from celery_superfetch.store.private_lists import CLAIM_BYTES, PrivateLists
from celery_superfetch.store.wire.scripts import Call
from celery_superfetch.transport.fetch.queue_lists import ALIKE, QueueLists
from support.workers.bench import Bench, payload
from support.workers.inbox import Inbox

QUEUES = [f"q{n}" for n in range(5)]
#: kombu's priority steps, as suffixes of queue lists.
STEPS = ("", "\x06\x163", "\x06\x166", "\x06\x169")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lists each claim has named."""
    numbers: list[int] = []
    claim = PrivateLists.claim

    def noted(lists: PrivateLists, owner: str, names: Sequence[str], *args: Any) -> Call:
        numbers.append(len(names))
        return claim(lists, owner, names, *args)

    monkeypatch.setattr(PrivateLists, "claim", noted)
    return numbers


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


def test_busy_queues_are_claimed_from_one_list_at_a_time(url, bench, named):
    make_busy(bench)
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        ids = receive(inbox, 20)
    assert ids == [f"{queue} {n}" for n in range(4) for queue in QUEUES]
    assert named == ALIKE * [20] + (20 - ALIKE) * [1]


def test_one_busy_queue_among_many_is_reached_without_the_lower_priorities(url, bench, named):
    bench.push("q2", *(payload(n, "q2") for n in range(18)))
    with Inbox(url, *QUEUES, prefetch=3) as inbox:
        receive(inbox, 18)
    assert named == ALIKE * [20] + (6 - ALIKE) * [5]


def test_a_claim_that_falls_short_asks_all_the_others_at_once(url, bench, named):
    """And only then waits for more."""
    bench.push("q0", *(payload(f"first {n}", "q0") for n in range(ALIKE)))
    bench.push("q4\x06\x169", payload("last", "q4"))
    options = {"prefetch": 1, "queue_order_strategy": "sorted"}
    with Inbox(url, *QUEUES, **options) as inbox:
        receive(inbox, ALIKE)
        assert named == ALIKE * [20]
        inbox.connection.drain_events(timeout=10)
        assert inbox.messages[-1].headers["id"] == "last"
        assert named[ALIKE:] == [1, 20]
        inbox.messages[-1].ack()
        inbox.settle_in()
        assert named[ALIKE:] == [1, 20, 20], "and so they are before it waits"


def test_what_is_urgent_comes_first_however_few_lists_are_named(url, bench, named):
    bench.push("q0\x06\x163", *(payload(f"late {n}", "q0") for n in range(ALIKE + 2)))
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, ALIKE + 1)
        bench.push("q3", payload("urgent", "q3"))
        assert receive(inbox, 2) == ["urgent", f"late {ALIKE + 1}"]
    assert named[ALIKE:] == [10] * 3


def test_equal_queues_are_served_in_turn_when_there_is_room_for_more_than_one_again(
    url, bench, named
):
    """What was enough for one job is not for several."""
    make_busy(bench)
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, ALIKE + 1)
        inbox.consumer.qos(prefetch_count=3)
        inbox.receive(ALIKE + 4)
        assert {*inbox.ids()[-3:]} == {"q0 1", "q1 1", "q2 1"}
    assert named == [*ALIKE * [20], 1, 5]


@pytest.mark.parametrize("others", [["q0"], [*QUEUES, "more"]])
def test_the_queues_may_change_meanwhile(url, bench, named, others):
    bench.push("q0", *(payload(n, "q0") for n in range(ALIKE + 3)))
    with Inbox(url, *QUEUES, prefetch=1) as inbox:
        receive(inbox, ALIKE + 1)
        for queue in set(others) - set(QUEUES):
            inbox.consumer.add_queue(kombu.Queue(queue))
            inbox.consumer.consume()
        for queue in set(QUEUES) - set(others):
            inbox.consumer.cancel_by_queue(queue)
        last = others[-1] + "\x06\x169"
        bench.push(last, payload("last", others[-1]))
        assert receive(inbox, 3) == [str(ALIKE + 1), str(ALIKE + 2), "last"]
        before = len(named)
        inbox.settle_in()
        assert len(named) == before + 1, "one that names all says that there is no more"


def test_a_claim_that_took_as_many_bytes_as_it_may_has_not_fallen_short(bench):
    owner, large = bench.owner().owner, payload("x" * (CLAIM_BYTES // 4))
    bench.push("mail", *3 * [large])
    claims = bench.in_flight.claim(owner, ["mail"], 3, 1, [])
    assert len(claims.jobs) == 2
    assert not claims.fell_short(3)
    rest = bench.in_flight.claim(owner, ["mail"], 3, 1, [])
    assert len(rest.jobs) == 1
    assert rest.fell_short(3)


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("strategy", ["round_robin", "sorted", "priority"])
@pytest.mark.parametrize("seed", range(3))
def test_the_jobs_come_in_the_order_of_claims_which_name_all(
    url, bench, named, monkeypatch, prefetch, strategy, seed
):
    chance = random.Random(seed)
    steps = [chance.randrange(2) for _ in range(150)]
    lists = [chance.choice(QUEUES) + STEPS[2 * step] for step in steps]

    def order() -> list[int]:
        for number, queue_list in enumerate(lists):
            bench.push(queue_list, payload(number))
        with Inbox(url, *QUEUES, prefetch=prefetch, queue_order_strategy=strategy) as inbox:
            return [int(id) for id in receive(inbox, len(lists))]

    few, lists_of_few = order(), sum(named)
    named.clear()
    monkeypatch.setattr(QueueLists, "reach", lambda *_: None)
    all_named = order()
    assert lists_of_few < sum(named)
    if strategy == "round_robin" and prefetch > 1:
        # One that falls short has had its turn in some queues: the next begins with another.
        assert [steps[number] for number in few] == sorted(steps)
    else:
        assert few == all_named


def test_many_queues_are_consumed_and_given_up_without_a_look_at_all_for_each(url, monkeypatch):
    """A worker of 1,000 queues stood still for 5 s as it stopped, and at each reconnect."""
    served: list[int] = []
    serve = QueueLists.serve

    def count(lists: QueueLists, queues: Mapping[str, list[str]], *args: Any) -> None:
        served.append(len(queues))
        serve(lists, queues, *args)

    monkeypatch.setattr(QueueLists, "serve", count)
    with Inbox(url, *map(str, range(50)), "mail") as inbox:
        inbox.turn()
        inbox.consumer.cancel_by_queue("mail")
        inbox.turn()
        inbox.consumer.cancel()
    assert served == [51, 50]


def test_a_channel_that_closes_asks_a_lost_server_no_more_often_for_many_queues(
    fresh_server, caplog
):
    """What could not be given back was tried again for each: at a server that hangs, a worker of 20
    queues needed 24 times its ``socket_timeout`` to let go of its connection."""
    server = fresh_server()
    with Inbox(server.url(), *map(str, range(20)), "mail", prefetch=4) as inbox:
        server.client().lpush("mail", *map(payload, range(4)))
        inbox.receive(1)
        assert len(inbox.channel.fetch.backlog) == 3
        server.kill()
    assert caplog.text.count("could not be given back") <= 3
