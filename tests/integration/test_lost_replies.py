"""A server that stands still for longer than a client waits: it does what nobody hears of."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_superfetch import lost_replies
from celery_superfetch.facts import Facts
from celery_superfetch.job import digest, parse
from celery_superfetch.membership import Membership
from celery_superfetch.signals import LostJob, ownership_lost
from harness.faults import kill_connections
from harness.server import Server
from harness.waiting import always, eventually
from parts.bench import Bench, payload

TIMEOUT = 0.3


@pytest.fixture
def server(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server(appendonly=True, appendfsync="always")


@pytest.fixture
def hasty(server: Server) -> Bench:
    """A process that gives up on a reply after 0.3 s."""
    own = redis.ConnectionPool(host="127.0.0.1", port=server.port, socket_timeout=TIMEOUT)
    return Bench(redis.Redis(connection_pool=own))


@pytest.fixture
def owner(hasty: Bench) -> Facts:
    facts = hasty.owner()
    # From here on the server knows the scripts, and we its version.
    hasty.in_flight.claim(facts.owner, ["mail"], 1, 1, [])
    hasty.in_flight.scripts.run_all([hasty.lists.ack([])])
    hasty.in_flight.claim_alone(facts.owner, "mail")
    return facts


@pytest.fixture
def lost() -> Iterator[list[LostJob]]:
    jobs: list[LostJob] = []

    def receiver(lost: LostJob, **_: object) -> None:
        jobs.append(lost)

    ownership_lost.connect(receiver)
    yield jobs
    ownership_lost.disconnect(receiver)


def unheard(server: Server, call: Callable[[], Any]) -> None:
    """Make a call whose reply does not come in time; the server carries it out later."""
    server.pause()
    with pytest.raises(RedisTimeoutError):
        call()
    server.resume()


def test_a_claim_whose_reply_was_lost_is_given_back(
    server: Server, hasty: Bench, owner: Facts
) -> None:
    raws = [payload(n) for n in range(5)]
    hasty.push("mail", *raws)
    held = hasty.in_flight
    unheard(server, lambda: held.claim(owner.owner, ["mail"], 3, 1, []))
    assert held.doubt
    assert len(held) == 0
    eventually(lambda: len(hasty.private(owner)) == 3, message="the control: claimed all the same")
    assert held.reconcile(owner.owner, ["mail"]) == 3
    assert not held.doubt
    assert hasty.queue() == raws, "in the old order"
    assert hasty.private(owner) == []
    assert len(held) == 0


def test_what_is_held_is_not_given_back_with_it(server: Server, hasty: Bench, owner: Facts) -> None:
    """Of two equal payloads one is held, one came with the lost reply."""
    held = hasty.in_flight
    hasty.push("mail", payload("same"))
    [known] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    hasty.push("mail", payload("same"), payload("other"))
    unheard(server, lambda: held.claim(owner.owner, ["mail"], 2, 1, []))
    eventually(lambda: len(hasty.private(owner)) == 3)
    assert held.reconcile(owner.owner, ["mail"]) == 2
    assert hasty.private(owner) == [payload("same")]
    assert sorted(hasty.queue()) == sorted([payload("same"), payload("other")])
    assert held.holds(known.job)


def test_a_claim_that_arrives_after_the_look_is_found_by_the_second_one(
    hasty: Bench, owner: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_replies, "LATE_CLAIM", 0.2)
    held = hasty.in_flight
    hasty.push("mail", payload(1))
    on_its_way = held.lists.claim(owner.owner, ["mail"], 1, 1, [])
    held.doubt = True
    assert held.reconcile(owner.owner, ["mail"]) == 0
    hasty.run(on_its_way)
    assert hasty.private(owner) == [payload(1)]
    eventually(held.in_doubt)
    assert held.reconcile(owner.owner, ["mail"]) == 1
    assert hasty.queue() == [payload(1)]
    always(lambda: not held.in_doubt(), during=0.5)


def test_an_ack_whose_reply_was_lost_is_sent_again_without_an_alarm(
    server: Server, hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    held = hasty.in_flight
    hasty.push("mail", payload(1))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    held.ack(claimed)
    unheard(server, held.flush)
    assert held.settlements["acks"] == 1
    eventually(lambda: hasty.private(owner) == [], message="the control: acked all the same")
    held.flush()
    assert held.settlements["acks"] == 0
    assert lost == [], "it found nothing, which proves nothing"
    assert len(held) == 0


def test_only_the_resent_ack_is_silent(
    server: Server, hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2))
    one, two = held.claim(owner.owner, ["mail"], 2, 1, []).jobs
    held.ack(one)
    unheard(server, held.flush)
    hasty.client.delete(hasty.keys.private(owner.owner, "mail"))
    held.ack(two)
    held.flush()
    assert lost == [LostJob.of(two.job, parse(two.job.payload))]


def test_an_ack_that_never_arrived_is_sent_again(
    server: Server, hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    """The server died before it read it, and came back with its data."""
    held = hasty.in_flight
    hasty.push("mail", payload(1))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    held.ack(claimed)
    server.kill()
    with pytest.raises(redis.ConnectionError):
        held.flush()
    server.restart()
    assert hasty.private(owner) == [payload(1)]
    held.flush()
    assert hasty.private(owner) == []
    assert lost == []


def test_an_ack_that_is_posted_waits_for_nobody(server: Server, hasty: Bench, owner: Facts) -> None:
    """Whoever sends the next thing reads the answer. The control is the lost one above."""
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2), payload(3))
    one, two = held.claim(owner.owner, ["mail"], 2, 1, []).jobs
    held.ack(one)
    server.pause()
    held.post()
    assert held.settlements["acks"] == 1
    held.requeue([one.job])  # as a channel that is closed does with all that it has delivered
    server.resume()
    held.ack(two)
    held.post()
    assert held.settlements["acks"] == 2, "the answers are read some at a time"
    held.post()
    assert held.settlements["acks"] == 0, "or when there is nothing else to do"
    [three] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert three.job.payload == payload(3)
    assert held.settlements == {"acks": 0, "returns": 0}
    assert hasty.private(owner) == [payload(3)]
    assert hasty.queue() == []
    assert len(held) == 1
    assert not held.unsent
    assert not held.unread


@pytest.mark.parametrize("arrives", [True, False])
def test_a_posted_ack_whose_answer_was_lost_is_sent_again_without_an_alarm(
    server: Server, hasty: Bench, owner: Facts, lost: list[LostJob], arrives: bool
) -> None:
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2))
    one, two = held.claim(owner.owner, ["mail"], 2, 1, []).jobs
    held.ack(one)
    server.pause()
    held.post()
    held.ack(two)
    if arrives:
        with pytest.raises(RedisTimeoutError):
            held.flush()
        server.resume()
        eventually(lambda: hasty.private(owner) == [])
    else:
        server.kill()
        with pytest.raises(redis.ConnectionError):
            held.post()
        server.restart()
        assert hasty.private(owner) == [payload(2), payload(1)]
    assert held.doubt
    assert held.settlements["acks"] == 2
    held.flush()
    assert hasty.private(owner) == []
    assert (len(held), lost) == (0, [])


def test_a_posted_ack_whose_script_the_server_forgot_is_carried_out(
    hasty: Bench, owner: Facts
) -> None:
    """At once by a server that this connection has not told it; else with the next exchange."""
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2))
    one, two = held.claim(owner.owner, ["mail"], 2, 1, []).jobs
    hasty.client.script_flush()
    held.ack(one)
    held.post()
    eventually(lambda: hasty.private(owner) == [payload(2)])
    hasty.client.script_flush()
    held.ack(two)
    held.post()
    held.post()
    assert hasty.private(owner) == []
    assert len(held) == 0


def test_a_health_check_does_not_take_the_answer_to_a_posted_ack(
    server: Server, lost: list[LostJob]
) -> None:
    """redis-py sends one by itself when a connection was not read from for a while."""
    interval = 0.01
    bench = Bench(redis.Redis(host="127.0.0.1", port=server.port, health_check_interval=interval))
    owner, held = bench.owner(), bench.in_flight
    bench.push("mail", payload(1), payload(2))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    held.ack(claimed)
    held.post()
    began = monotonic()
    eventually(lambda: monotonic() > began + 2 * interval)
    [other] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert other.job.payload == payload(2)
    assert (len(held), held.doubt, lost) == (1, False, [])


def test_an_answer_that_waited_long_on_a_lost_connection_keeps_nobody_from_asking(
    hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    """A plain consumer was away; meanwhile the server closed what idled."""
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    held.ack(claimed)
    held.post()
    eventually(lambda: hasty.private(owner) == [])
    kill_connections(hasty.client)
    eventually(lambda: held._acks.overdue)
    [other] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert other.job.payload == payload(2)
    assert (held.settlements["acks"], lost) == (0, [])


def test_a_forked_child_reads_no_answer_of_its_parents(
    hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    held = hasty.in_flight
    hasty.push("mail", payload(1), payload(2), payload(3))
    one, two = held.claim(owner.owner, ["mail"], 2, 1, []).jobs
    held.ack(one)
    held.post()
    child = os.fork()
    if child == 0:
        try:
            held.ack(two)
            held.flush()
        finally:
            os._exit(held.settlements["acks"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    [three] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    assert three.job.payload == payload(3)
    assert (hasty.private(owner), lost) == ([payload(3)], [])


def test_a_return_whose_reply_was_lost_goes_back_once(
    server: Server, hasty: Bench, owner: Facts, lost: list[LostJob]
) -> None:
    held = hasty.in_flight
    hasty.push("mail", payload(1))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    server.pause()
    held.requeue([claimed.job])  # does not raise: it is called at close and at exit
    assert held.settlements["returns"] == 1
    server.resume()
    held.flush()
    assert held.settlements["returns"] == 0
    assert hasty.queue() == [payload(1)]
    assert hasty.private(owner) == []
    assert (len(held), lost) == (0, [])


def test_redis_pys_own_retries_do_not_hide_a_lost_reply(server: Server) -> None:
    """`retry_on_timeout` is an option of kombu's; a claim that redis-py repeats claims twice."""
    bench = Bench(server.client())
    params = {"host": "127.0.0.1", "port": server.port}
    membership = Membership(
        {**params, "socket_timeout": TIMEOUT, "retry_on_timeout": True}, bench.config
    )
    membership.join(1, {"mail": 0})
    membership.claim(["mail"], 1, 1)
    bench.push("mail", *(payload(n) for n in range(4)))
    outcome: list[Any] = []

    def claim() -> None:
        try:
            outcome.append(membership.claim(["mail"], 2, 1))
        except redis.RedisError as exc:
            outcome.append(exc)

    server.pause()
    thread, began = threading.Thread(target=claim), monotonic()
    thread.start()
    eventually(lambda: monotonic() - began > 1.3 * TIMEOUT)
    server.resume()
    thread.join()
    eventually(lambda: bench.private(membership.owner))
    unknown = len(bench.private(membership.owner)) - len(membership.in_flight)
    assert unknown == 0 or membership.in_flight.doubt, f"{outcome} hides {unknown} jobs"
    membership.in_flight.reconcile(membership.owner, ["mail"])
    membership.leave_for_good()


@pytest.mark.parametrize("remembered", [True, False])
def test_what_a_promoted_replica_had_not_seen_acked_is_acked_again(
    hasty: Bench, owner: Facts, lost: list[LostJob], remembered: bool
) -> None:
    """The control: without the memory of what was settled it goes back, and runs again."""
    held = hasty.in_flight
    hasty.push("mail", payload(1))
    [claimed] = held.claim(owner.owner, ["mail"], 1, 1, []).jobs
    held.ack(claimed)
    held.flush()
    hasty.give(owner.owner, "mail", [payload(1), payload(2)])
    if not remembered:
        held._acks._lately.clear()
    assert held.reconcile(owner.owner, ["mail"]) == (1 if remembered else 2)
    assert hasty.private(owner) == []
    assert hasty.queue() == ([payload(2)] if remembered else [payload(1), payload(2)])
    assert (len(held), lost) == (0, [])


def test_a_claim_for_a_suspect_that_was_lost_and_brought_none_leaves_the_next_one_alone(
    server: Server, hasty: Bench, owner: Facts
) -> None:
    """Another channel of the process had passed its look at what is in doubt by then."""
    held, suspect = hasty.in_flight, payload("suspect")
    unheard(server, lambda: held.claim_alone(owner.owner, "mail"))
    hasty.client.lpush(hasty.keys.probation("mail"), suspect)
    claimed = held.claim_alone(owner.owner, "mail")
    assert claimed is not None
    assert held.reconcile(owner.owner, ["mail"]) == 0
    assert held.alone == claimed.job
    assert hasty.lists.running(owner.owner).alone == digest(suspect)


def test_two_lost_claims_for_a_suspect_leave_nothing_that_seems_to_run(
    server: Server, hasty: Bench, owner: Facts
) -> None:
    """The first took it, the second found the process busy with it."""
    held, suspect = hasty.in_flight, payload("suspect")
    hasty.client.lpush(hasty.keys.probation("mail"), suspect)
    for _ in range(2):
        unheard(server, lambda: held.claim_alone(owner.owner, "mail"))
    eventually(lambda: hasty.private(owner) == [suspect])
    assert held.reconcile(owner.owner, ["mail"]) == 1
    assert hasty.lists.running(owner.owner).digests == ()
