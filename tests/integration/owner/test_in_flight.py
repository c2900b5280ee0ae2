"""What a process holds: claims, settlements, and who hears of what went wrong."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import pytest
import redis

from celery_superfetch.model.job import Claimed, Counters, digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.signals import LostJob, ownership_lost
from celery_superfetch.store.private_lists import WAITS
from celery_superfetch.store.redis.pipeline import IDLE_S
from support.driver import ACKS_PER_SCRIPT
from support.servers.commands import calls
from support.servers.faults import another_type
from support.waiting import eventually
from support.workers.bench import Bench, lost_job, payload, settling


@pytest.fixture
def owner(bench: Bench) -> OwnerRecord:
    return bench.owner(lists=["mail", "slow"])


@pytest.fixture
def blocking() -> Iterator[tuple[list[str], Event, Event]]:
    """A receiver of the loss of a job that blocks in its first call: the task ids of its calls, and
    the events that say that it was called, and that let it go on."""
    ids, called, goes_on = list[str](), Event(), Event()

    def receive(lost: LostJob, **_: object) -> None:
        ids.append(str(lost.task_id))
        called.set()
        goes_on.wait(20)

    ownership_lost.connect(receive)
    yield ids, called, goes_on
    goes_on.set()
    ownership_lost.disconnect(receive)


def test_a_claimed_job_is_held_until_it_is_settled(bench, owner):
    [claimed] = bench.take(owner, payload(1))
    held = bench.driver
    assert claimed.job in held
    assert len(held) == 1
    held.finish(claimed)
    assert bench.private(owner) == [payload(1)], "it waits for the end of the turn"
    assert settling(held) == (1, 0)
    held.flush()
    assert bench.private(owner) == []
    assert (len(held), claimed.job in held) == (0, False)


def test_acks_travel_with_the_next_claim(bench, owner):
    first = bench.take(owner, payload(1), payload(2))
    for claimed in first:
        bench.driver.finish(claimed)
    [next_one] = bench.take(owner, payload(3))
    assert bench.private(owner) == [payload(3)]
    assert next_one.job in bench.driver
    assert settling(bench.driver) == (0, 0)


def test_two_equal_payloads_are_two_jobs(bench, owner):
    same, other = bench.take(owner, payload(1), payload(1))
    assert len(bench.driver) == 2
    bench.driver.finish(same)
    bench.driver.flush()
    assert same.job not in bench.driver
    assert other.job in bench.driver
    assert bench.held(owner) == [other.job]


@pytest.mark.parametrize("taken", ["plain", "counted"])
def test_counters_go_with_the_ack_of_their_own_job_and_no_other(bench, owner, lost, caplog, taken):
    """The other, which has none, is acked first. A job that was taken away keeps its own, and is
    announced."""
    counters = bench.keys.history(digest(payload("counted")))
    bench.client.hset(counters, "recoveries", 1)
    bench.client.set(bench.keys.has_history, 1)
    plain, counted = bench.take(owner, payload("plain"), payload("counted"))
    assert (plain.counters, counted.solo_runs) == (None, 0)
    assert counted.counters.recoveries == 1
    gone = {"plain": plain, "counted": counted}[taken].job
    bench.client.hdel(bench.keys.private(owner.owner), gone.claim_id, WAITS + gone.claim_id)
    for claimed in (plain, counted):
        bench.driver.finish(claimed)
    bench.driver.flush()
    assert lost == [lost_job(gone)]
    assert f"Lost ownership of job {gone.title}" in caplog.text
    assert len(bench.driver) == 0
    assert bench.client.exists(counters) == (taken == "counted")


@pytest.mark.parametrize("has_history", [False, True])
@pytest.mark.parametrize("gone_count", [1, 2, 3])
def test_acks_announce_a_loss_only_if_the_server_had_nothing_of_their_batch(
    bench, owner, lost, has_history, gone_count
):
    """Ownership is lost for all jobs of an owner at once. A start in the same command is of that
    owner, too, so its waiting note is gone with them."""
    counters = Counters(strikes=1) if has_history else None
    *claims, starting = bench.take(owner, *(payload(n) for n in range(4)))
    acked = [claimed._replace(counters=counters) for claimed in claims]
    for claimed in acked[:gone_count] + [starting] * (gone_count == 3):
        id = claimed.job.claim_id
        bench.client.hdel(bench.keys.private(owner.owner), id, WAITS + id)
    for claimed in acked:
        bench.driver.finish(claimed)
    assert bench.driver.start(starting.job)
    bench.driver.flush()
    assert lost == [lost_job(claimed.job) for claimed in acked if gone_count == 3]
    assert len(bench.driver) == 1
    assert bench.held(owner) == [starting.job] * (gone_count < 3)


def test_a_start_record_that_is_sent_again_does_not_hide_a_lost_job(bench, owner, lost):
    """The record finds no waiting note the second time, and the batch has nothing else."""
    one, two = bench.take(owner, payload(1), payload(2))
    with bench.driver.lose_reply():
        assert not bench.driver.start(one.job)
        bench.driver.finish(one)
        with pytest.raises(redis.ConnectionError):
            bench.driver.flush()
    bench.client.hdel(bench.keys.private(owner.owner), two.job.claim_id, WAITS + two.job.claim_id)
    bench.driver.finish(two)
    bench.driver.flush()
    assert lost == [lost_job(two.job)], "the other ack was sent before, and is no news"
    assert len(bench.driver) == 0


def test_calls_for_a_claim_that_nobody_knows_move_nothing(bench, owner):
    """Though it has the bytes of one that is there."""
    [one] = bench.take(owner, payload(1))
    unknown = one.job._replace(claim_id="ff:mail")
    assert bench.run(bench.lists.requeue([unknown], "front", 0)) == [1]
    bench.run(bench.parked.park({unknown: 1}))
    assert not bench.ack(owner, Claimed(unknown), starting=[unknown])
    assert not bench.ack(owner, Claimed(unknown, Counters()))
    assert bench.client.hgetall(bench.keys.private(owner.owner)) == {
        one.job.claim_id.encode(): payload(1),
        f"{WAITS}{one.job.claim_id}".encode(): b"",
    }
    assert bench.queue() == []
    assert not bench.client.exists(bench.keys.parked, bench.keys.parked_of("mail"))


def test_a_requeue_is_not_held_any_more_and_keeps_the_order(bench, owner):
    raws = [payload(n) for n in range(100)]
    jobs = [claimed.job for claimed in bench.take(owner, *raws)]
    bench.push("mail", b"backlog")
    bench.driver.requeue(reversed(jobs))
    assert bench.queue() == [*raws, b"backlog"]
    assert len(bench.driver) == 0


def test_jobs_that_are_requeued_to_the_back_run_last(bench, owner):
    jobs = [claimed.job for claimed in bench.take(owner, payload(1), payload(2), payload(3))]
    bench.push("mail", payload("backlog"))
    bench.driver.requeue([jobs[2]], "back")
    bench.driver.requeue([jobs[1], jobs[0]])
    assert bench.queue() == [payload(1), payload(2), payload("backlog"), payload(3)]


def test_losses_are_announced_in_order_and_once_and_hold_up_no_other_thread(bench, owner, blocking):
    """The receivers are the user's. While one blocks, other threads ack, claim and find losses."""
    ids, called, goes_on = blocking
    *gone, acked = bench.take(owner, *(payload(n) for n in range(4)))
    for claimed in gone:
        id = claimed.job.claim_id
        bench.client.hdel(bench.keys.private(owner.owner), id, WAITS + id)
    with ThreadPoolExecutor(2) as threads:
        bench.driver.finish(gone[0])
        first = threads.submit(bench.driver.flush)
        assert called.wait(10)

        def act() -> list[Claimed]:
            for claimed in gone[1:]:
                bench.driver.finish(claimed)
            bench.driver.flush()
            bench.driver.finish(acked)
            bench.driver.flush()
            return bench.take(owner, payload("next"))

        [claimed] = threads.submit(act).result(10)
        assert bench.held(owner) == [claimed.job]
        assert (ids, first.done()) == (["0"], False)
        goes_on.set()
        first.result(10)
    assert ids == ["0", "1", "2"]
    assert bench.stat("ownership_lost") == 3


def test_a_loss_that_is_found_as_announcements_end_is_announced_without_a_further_call(
    bench, owner, lost
):
    """The thread that finds it cannot announce it, since another thread still holds the lock. That
    one has to look again; without it the loss was announced only after the next one."""
    one, two = bench.take(owner, payload(1), payload(2))
    for claimed in (one, two):
        id = claimed.job.claim_id
        bench.client.hdel(bench.keys.private(owner.owner), id, WAITS + id)

    def finish(claimed: Claimed) -> None:
        bench.driver.finish(claimed)
        bench.driver.flush()

    with ThreadPoolExecutor(1) as threads:
        bench.driver.act_as_announcing_ends(lambda: threads.submit(finish, two).result(10))
        finish(one)
    assert lost == [lost_job(one.job), lost_job(two.job)]


def test_a_loss_that_is_learned_twice_is_announced_once(bench, owner, lost):
    """A deferred call is repeated if it was interrupted."""
    [claimed] = bench.take(owner, payload(1))
    bench.hand_over(claimed)
    bench.driver.learn(owner.owner)
    bench.driver.learn(owner.owner)
    assert lost == [lost_job(claimed.job)]


def test_whether_something_is_to_be_sent_is_asked_while_another_thread_acks(bench, owner):
    """The fetch loop asks without the lock. A requeue that was just refused is pending and does not
    count, so the question goes on to what another thread adds: it raised RuntimeError."""
    held, [stuck] = bench.driver, bench.take(owner, payload("stuck"), queue="slow")
    [done] = bench.take(owner, payload("done"))
    bench.client.set("slow", "a text")
    held.requeue([stuck.job])
    held.flush()  # in vain; from here on it is the first of what is pending
    assert not held.has_unsent
    with ThreadPoolExecutor(1) as threads:
        held.act_while_asked(stuck.job, lambda: threads.submit(held.finish, done).result(10))
        held.has_unsent  # noqa: B018
        assert held.has_unsent


def test_what_waits_to_be_acked_is_not_given_back(bench, owner, lost):
    done, open_ = bench.take(owner, payload("done"), payload("open"))
    bench.driver.finish(done)
    bench.driver.leave()
    bench.driver.requeue([done.job])
    bench.driver.flush()
    assert bench.queue() == [payload("open")]
    assert bench.private(owner) == []
    assert lost == []
    assert open_.job not in bench.driver


def test_a_broken_queue_keeps_its_own_jobs_and_holds_up_no_other(bench, owner, caplog):
    """Its key became something else while a job of it was in flight."""
    [stuck] = bench.take(owner, payload("stuck"), queue="slow")
    [other] = bench.take(owner, payload("other"))
    bench.client.set("slow", "a text")
    bench.driver.requeue([stuck.job])
    assert bench.private(owner, "slow") == [payload("stuck")]
    bench.driver.flush()
    assert caplog.text.count("Requeue failed (jobs=1)") == 1, "it is not asked again at once"

    bench.driver.finish(other)
    [claimed] = bench.take(owner, payload("new"))
    assert claimed.job.payload == payload("new")
    assert bench.private(owner) == [payload("new")], "and the ack went out"

    bench.client.delete("slow")

    def given_back() -> bool:
        bench.driver.flush()
        return bench.queue("slow") == [payload("stuck")]

    eventually(given_back, 10, message="given back when the key is mended")


def test_a_broken_queue_does_not_delay_the_returns_of_others(bench, owner):
    [stuck] = bench.take(owner, payload("stuck"), queue="slow")
    [other] = bench.take(owner, payload("other"))
    bench.client.set("slow", "a text")
    bench.driver.requeue([stuck.job])
    bench.driver.requeue([other.job])
    assert bench.queue() == [payload("other")], "at a close there is no later"
    assert bench.private(owner, "slow") == [payload("stuck")]


def test_giving_all_back_gives_equal_payloads_back_as_often_as_held(bench, owner):
    bench.take(owner, payload(1), payload(1))
    bench.driver.leave()
    assert bench.queue() == [payload(1), payload(1)]


def test_what_an_owner_that_was_lost_has_on_its_way_out_gets_there(bench, owner):
    acked, returned = bench.take(owner, payload("acked"), payload("returned"))
    bench.client.set("mail", "a text")
    bench.driver.requeue([returned.job])
    bench.client.delete("mail")
    bench.driver.finish(acked)
    assert settling(bench.driver) == (1, 1)
    bench.driver.learn(owner.owner)
    bench.driver.retry_requeue_now(returned.job)
    bench.driver.flush()
    assert (bench.queue(), bench.private(owner)) == ([payload("returned")], [])
    assert len(bench.driver) == 0, "or the process could never leave"


def test_settling_from_many_threads_loses_nothing(bench, owner, lost):
    jobs = bench.take(owner, *(payload(n) for n in range(100)))

    def settle(part: list[Claimed]) -> None:
        for n, claimed in enumerate(part):
            bench.driver.finish(claimed)
            if n % 7 == 0:
                bench.driver.flush()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(settle, (jobs[at::4] for at in range(4))))
    bench.driver.flush()
    assert bench.private(owner) == []
    assert (len(bench.driver), lost) == (0, [])


def test_jobs_that_went_back_leave_no_payload_behind(bench):
    """C10. What was called off was remembered by its payload for 300 s: 40 s of
    `Reject(requeue=True)` took 193 MB, and what a lost reply had brought is remembered for 60 s.
    So is a job of which nobody knows whether it is recorded, as long as it is ours."""
    owner, held = bench.owner().owner, bench.driver
    tracemalloc.start()
    try:
        for number in range(15):
            bench.push("mail", payload(number, padding="x" * 1_000_000))
            [claimed] = held.claim(owner, ["mail"], 1, 1, [], 1).jobs
            broken = another_type(bench.client, bench.keys.private(owner))
            with broken, pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                held.unrecord(claimed.job)
            held.requeue([claimed.job])
            bench.run(held.lists.claim_call(owner, ["mail"], 1, 1, [], 0))
            assert held.reconcile(owner, {"mail": 0}) == 1, "nobody has heard of this claim"
            bench.client.delete("mail")
            del claimed
        gc.collect()  # errors and their frames are circles
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_connection_that_rests_is_given_back(url):
    own = redis.Redis.from_url(url)
    bench, began = Bench(own), monotonic()
    bench.take(bench.owner(), payload(1))
    bench.driver.rest()
    assert own.connection_pool._in_use_connections or monotonic() > began + IDLE_S

    def is_given_back() -> bool:
        bench.driver.rest()
        return not own.connection_pool._in_use_connections

    eventually(is_given_back, IDLE_S + 10)
    own.close()


def test_thousands_of_jobs_that_end_at_once_are_acked_some_in_a_command(bench, owner, lost):
    """A pool of greenlets may end as many in one tick; the counters go with their own job."""
    number = 2 * ACKS_PER_SCRIPT + 7
    jobs = bench.give(owner.owner, "mail", [payload(n) for n in range(number)])
    marked = jobs[:: ACKS_PER_SCRIPT // 2]
    for job in marked:
        bench.client.hset(bench.keys.history(digest(job.payload)), "strikes", 1)
    for job in jobs:
        bench.driver.hold(job)
        bench.driver.finish(Claimed(job, Counters(strikes=1) if job in marked else None))
    before = calls(bench.client, "evalsha"), calls(bench.client, "hdel")
    bench.driver.flush()
    assert calls(bench.client, "evalsha") - before[0] == 1
    assert calls(bench.client, "hdel") - before[1] == 3 + len(marked), "those of the script, too"
    assert bench.held(owner) == []
    assert not bench.client.keys(bench.keys.history("*"))
    assert lost == []
