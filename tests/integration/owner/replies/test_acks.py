"""Acks that are sent without waiting for the reply: a later send reads it, with some others."""

from __future__ import annotations

import os
import signal
from threading import Thread
from time import monotonic

import pytest
import redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_superfetch.model.job import Claimed, Counters, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.redis.scripts import Scripts
from support.driver import UNREAD_REPLIES_MAX
from support.servers.faults import another_type, kill_connections, unheard
from support.waiting import eventually
from support.workers.bench import Bench, payload, settling


def post(bench: Bench, *settled: Claimed) -> None:
    """Ack each job in a send of its own, without waiting for the reply."""
    for claimed in settled:
        bench.driver.finish(claimed)
        bench.driver.post()


def counted(claimed: Claimed) -> Claimed:
    """Return a claimed job as one with a history."""
    return claimed._replace(counters=Counters(strikes=1))


def test_an_ack_that_is_posted_waits_for_nobody(server, hasty, owner):
    """A later send reads the reply."""
    held = hasty.driver
    one, two = hasty.take(owner, payload(1), payload(2), payload(3), most=2)
    held.finish(one)
    server.pause()
    held.post()
    assert held.settled_count == 1
    held.close([one.job])  # as a channel that is closed does with all that it has delivered
    server.resume()
    post(hasty, two)
    assert held.settled_count == 2, "the replies are read some at a time"
    held.post()
    assert held.settled_count == 0, "or by a flush with nothing to send"
    [three] = hasty.take(owner)
    assert three.job.payload == payload(3)
    assert settling(held) == (0, 0)
    assert hasty.private(owner) == [payload(3)]
    assert hasty.queue() == []
    assert len(held) == 1
    assert not held.has_unsent
    assert not held.has_unread


def post_one_by_one(bench: Bench, owner: OwnerRecord, count: int) -> list[int]:
    """Ack as many jobs; return how many replies were unread after each."""
    unread = []
    for claimed in bench.take(owner, *(payload(n) for n in range(count))):
        post(bench, claimed)
        unread.append(bench.driver.settled_count)
    return unread


def test_replies_are_read_some_at_a_time(hasty, owner, lost):
    """A read of the socket costs as much as a send; a job is kept until its ack is confirmed."""
    rising = [*range(1, UNREAD_REPLIES_MAX + 1)]
    unread = post_one_by_one(hasty, owner, 2 * UNREAD_REPLIES_MAX + 1)
    assert unread == [*rising, 1, *rising[1:], 1][: len(unread)]
    hasty.driver.post()
    assert (len(hasty.driver), hasty.private(owner), lost) == (0, [], [])


def test_a_refusal_is_heard_with_the_next_thing_that_waits(hasty, owner, lost):
    """All that it concerns is sent again."""
    held = hasty.driver
    jobs = hasty.take(owner, *(payload(n) for n in range(3)))
    hasty.push("mail", payload("more"))
    with another_type(hasty.client, hasty.keys.private(owner.owner)):
        post(hasty, *jobs)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            held.claim(owner.owner, ["mail"], 1, 1, [])
    assert held.settled_count == 3
    held.flush()
    assert held.settled_count == 0
    assert (hasty.private(owner), lost) == ([], [])
    assert hasty.queue() == [payload("more")], "it could not be claimed, and stayed"


def test_what_a_claim_brought_beside_a_refusal_is_looked_for(hasty, owner, lost):
    """Nobody has read its answer. The control: a refusal alone leaves no doubt."""
    held, former = hasty.driver, hasty.owner()
    [before] = hasty.take(former, payload(1))
    hasty.push("mail", payload(2))
    with another_type(hasty.client, hasty.keys.private(former.owner)):
        held.finish(before)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            held.flush()
        assert not held.needs_reconcile
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            held.claim(owner.owner, ["mail"], 1, 1, [])
        assert hasty.private(owner) == [payload(2)]
        assert held.needs_reconcile
    assert held.reconcile(owner.owner, {"mail": 0}) == 1
    assert (hasty.queue(), hasty.private(former), lost) == ([payload(2)], [], [])


def test_the_refusal_of_a_record_is_heard_with_the_next_thing_that_waits(hasty, owner):
    """The job runs on, and is recorded as soon as that is possible."""
    held = hasty.driver
    [one] = hasty.take(owner, payload(0))
    with another_type(hasty.client, hasty.keys.private(owner.owner)):
        assert held.start(one.job)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            held.flush()
    held.flush()
    assert hasty.recorded(owner) == [digest(payload(0))]


def test_a_record_that_was_taken_back_unheard_is_made_when_the_job_starts(server, hasty, owner):
    """Whether it is there, only the server knows."""
    held = hasty.driver
    [one] = hasty.take(owner, payload(1), starts=1)
    # From here on the server knows the script.
    hasty.run(held.lists.put_notes_back(owner.owner, ["none"]))
    unheard(server, lambda: held.unrecord(one.job))
    eventually(lambda: hasty.recorded(owner) == [], message="the control: it was carried out")
    assert held.reconcile(owner.owner, {"mail": 0}) == 0
    assert held.start(one.job)
    held.flush()
    assert hasty.recorded(owner) == [digest(payload(1))]


@pytest.mark.parametrize("patience", [30])
def test_a_signals_handler_may_settle_while_a_claim_waits(server, hasty, owner, lost):
    """The send that it interrupts goes on, and takes its ack along."""
    held = hasty.driver
    one, two = hasty.take(owner, *(payload(n) for n in range(3)), most=2)

    def handler(*_: object) -> None:
        server.resume()
        post(hasty, two)

    def interrupt() -> None:
        eventually(lambda: held.is_sending)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        post(hasty, one)
        server.pause()
        thread = Thread(target=interrupt)
        thread.start()
        [three] = hasty.take(owner)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert three.job.payload == payload(2)
    assert (held.settled_count, held.has_unsent) == (0, False)
    assert (len(held), hasty.private(owner), lost) == (1, [payload(2)], [])
    held.release_connection()
    assert not hasty.client.connection_pool._in_use_connections, "it had none of its own"


@pytest.mark.parametrize("posted", [0, 1, 5])
@pytest.mark.parametrize("arrive", [True, False])
def test_acks_whose_answers_were_lost_are_sent_again_without_an_alarm(
    server, hasty, owner, lost, arrive, posted
):
    """It found nothing then, which proves nothing; or the server died before it read them."""
    held, raws = hasty.driver, [payload(n) for n in range(posted + 1)]
    *first, last = hasty.take(owner, *raws)
    server.pause()
    post(hasty, *first)
    held.finish(last)
    if arrive:
        with pytest.raises(RedisTimeoutError):
            held.flush()
        server.resume()
        eventually(lambda: hasty.private(owner) == [])
    else:
        server.kill()
        with pytest.raises(redis.ConnectionError):
            held.flush()
        server.restart()
        assert hasty.private(owner) == raws[::-1]
    assert held.needs_reconcile
    assert held.settled_count == len(raws)
    held.flush()
    assert (hasty.private(owner), settling(held)) == ([], (0, 0))
    assert (len(held), lost) == (0, [])


def test_a_posted_ack_whose_script_the_server_forgot_is_carried_out(hasty, owner):
    """At once by a server that this connection has not told it; else with the next exchange. Jobs
    with a history are acked by a script."""
    one, two = map(counted, hasty.take(owner, payload(1), payload(2)))
    hasty.client.script_flush()
    post(hasty, one)
    eventually(lambda: hasty.private(owner) == [payload(2)])
    hasty.client.script_flush()
    post(hasty, two)
    hasty.driver.post()
    assert hasty.private(owner) == []
    assert len(hasty.driver) == 0


def test_what_cannot_be_carried_out_again_is_sent_again(hasty, owner, lost, monkeypatch):
    """The server forgot the script, and has no connection left for the one that would tell it."""

    def full(*_: object, **__: object) -> None:
        raise redis.ConnectionError("max number of clients reached")

    held = hasty.driver
    taken = hasty.take(owner, *(payload(n) for n in range(UNREAD_REPLIES_MAX + 1)))
    *first, last = map(counted, taken)
    for claimed in first:
        post(hasty, claimed)
        hasty.client.script_flush()
    held.finish(last)
    with monkeypatch.context() as patch:
        patch.setattr(Scripts, "run_all", full)
        with pytest.raises(redis.ConnectionError):
            held.post()
    assert held.settled_count == UNREAD_REPLIES_MAX + 1
    held.flush()
    assert (len(held), hasty.private(owner), lost) == (0, [], [])


def test_a_health_check_does_not_take_the_answer_to_a_posted_ack(server, lost):
    """redis-py sends one by itself when a connection was not read from for a while."""
    interval = 0.01
    bench = Bench(redis.Redis(host="127.0.0.1", port=server.port, health_check_interval=interval))
    owner, held = bench.owner(), bench.driver
    [claimed] = bench.take(owner, payload(1), payload(2), most=1)
    post(bench, claimed)
    began = monotonic()
    eventually(lambda: monotonic() > began + 2 * interval)
    [other] = bench.take(owner)
    assert other.job.payload == payload(2)
    assert (len(held), held.needs_reconcile, lost) == (1, False, [])


def test_an_answer_that_waited_long_on_a_lost_connection_keeps_nobody_from_asking(
    hasty, owner, lost
):
    """A plain consumer was away; meanwhile the server closed what idled."""
    held = hasty.driver
    [claimed] = hasty.take(owner, payload(1), payload(2), most=1)
    post(hasty, claimed)
    eventually(lambda: hasty.private(owner) == [])
    kill_connections(hasty.client)
    eventually(lambda: held.has_late_replies)
    [other] = hasty.take(owner)
    assert other.job.payload == payload(2)
    assert (held.settled_count, lost) == (0, [])


def test_a_forked_child_reads_no_answer_of_its_parents(hasty, owner, lost):
    held = hasty.driver
    one, two = hasty.take(owner, payload(1), payload(2), payload(3), most=2)
    post(hasty, one)
    child = os.fork()
    if child == 0:
        try:
            held.finish(two)
            held.flush()
        finally:
            os._exit(two.job in held)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    [three] = hasty.take(owner)
    assert three.job.payload == payload(3)
    assert (hasty.private(owner), lost) == ([payload(3)], [])
