"""A job that has a slot for itself starts without a question: its claim has just told enough."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest
import redis

from celery_superfetch.facts import Facts
from celery_superfetch.job import Claimed, Job, digest
from celery_superfetch.leases import START_LEASE, Leases
from harness.faults import kill_connections
from harness.waiting import eventually
from parts.bench import Bench, elsewhere, payload

ONE, TWO, THREE = payload(1), payload(2), payload(3)


@pytest.fixture
def owner(bench: Bench) -> Facts:
    in_flight = bench.in_flight
    in_flight.leases.has_slot = lambda: len(in_flight.in_pool) <= 2
    return bench.owner()


def claim(bench: Bench, owner: Facts, *payloads: bytes, starts: int = 0) -> list[Claimed]:
    bench.push("mail", *payloads)
    return list(bench.in_flight.claim(owner.owner, ["mail"], 10, 1, [], starts).jobs)


def hand_over(bench: Bench, job: Job) -> float:
    return bench.in_flight.hand_over(job, digest(job.payload))


def running(bench: Bench, owner: Facts) -> list[str]:
    """Digests of what the server has as running."""
    return sorted(bench.lists.running(owner.owner).digests)


def digests(*payloads: bytes) -> list[str]:
    return sorted(map(digest, payloads))


# -- recorded by the claim


def test_a_claim_records_the_first_of_its_jobs_as_running(bench: Bench, owner: Facts) -> None:
    one, two, three = claim(bench, owner, ONE, TWO, THREE, starts=2)
    assert running(bench, owner) == digests(ONE, TWO)
    ids = bench.client.hgetall(bench.keys.running(owner.owner))
    assert set(ids) == {one.job.claim_id.encode(), two.job.claim_id.encode()}
    assert hand_over(bench, one.job) > monotonic()
    bench.in_flight.leases.void()
    assert hand_over(bench, two.job) > monotonic(), "its own record is enough"
    assert hand_over(bench, three.job) == 0


def test_what_a_blocking_read_brought_starts_first(bench: Bench, owner: Facts) -> None:
    """Of two that it brought one was taken away meanwhile."""
    bench.push("mail", TWO)
    waited = bench.lists.job(owner.owner, "mail", ONE)
    gone = bench.lists.job(owner.owner, "mail", THREE)
    bench.client.lpush(bench.keys.private(owner.owner, "mail"), ONE)
    claims = bench.claim(owner, most=10, confirm=[gone, waited], starts=1)
    assert [job for job, _ in claims.started] == [waited]
    assert running(bench, owner) == digests(ONE)
    assert [claimed.job.payload for claimed in claims.jobs] == [TWO]


def test_fewer_jobs_than_might_start_are_all_recorded(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE, starts=5)
    assert running(bench, owner) == digests(ONE)
    [two] = claim(bench, owner, TWO)
    assert one.job.claim_id != two.job.claim_id


def test_nothing_is_recorded_beside_a_suspect(bench: Bench, owner: Facts) -> None:
    """A claim that was on its way when another thread got the suspect."""
    bench.client.hset(bench.keys.running(owner.owner), mapping={"alone": "x", "x": "?suspect"})
    [one] = claim(bench, owner, ONE, starts=1)
    assert running(bench, owner) == ["suspect"]
    assert bench.in_flight.leases.recorded(one.job) == 0


@pytest.mark.parametrize("other", [payload(2, eta="2030-01-01T00:00:00"), payload("x" * 20_000)])
def test_one_that_is_to_wait_or_is_large_asks_and_so_do_those_behind_it(
    bench: Bench, owner: Facts, other: bytes
) -> None:
    one, second, third = claim(bench, owner, ONE, other, THREE, starts=3)
    assert running(bench, owner) == digests(ONE)
    known = bench.in_flight.leases.recorded
    assert known(one.job) > 0
    assert known(second.job) == known(third.job) == 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_that_only_waits_does_not_count_as_running(
    bench: Bench, owner: Facts, waits: bool
) -> None:
    """For its rate limit, or for its time: then it is moved aside."""
    one, two = claim(bench, owner, ONE, TWO, starts=2)
    if waits:
        bench.in_flight.waits(one.job)
    bench.in_flight.delivered(one.job)
    hand_over(bench, two.job)
    bench.in_flight.delivered(two.job)
    bench.in_flight.flush()
    assert running(bench, owner) == digests(TWO)
    assert len(bench.private(owner)) == (1 if waits else 2)


def test_a_job_that_was_acked_unrun_is_not_asked_about(bench: Bench, owner: Facts) -> None:
    """Revoked, say."""
    [one] = claim(bench, owner, ONE, starts=1)
    bench.in_flight.ack(one)
    before = bench.client.info("commandstats").get("cmdstat_hdel", {}).get("calls", 0)
    bench.in_flight.delivered(one.job)
    after = bench.client.info("commandstats").get("cmdstat_hdel", {}).get("calls", 0)
    assert after == before
    bench.in_flight.flush()
    assert running(bench, owner) == []


# -- recorded when a pool gets it


def test_a_job_with_a_slot_is_recorded_with_the_ack_that_made_room(
    bench: Bench, owner: Facts
) -> None:
    one, two, three = claim(bench, owner, ONE, TWO, THREE)
    for claimed in (one, two):
        assert monotonic() < hand_over(bench, claimed.job) < monotonic() + START_LEASE
    eventually(lambda: running(bench, owner) == digests(ONE, TWO))
    bench.in_flight.ack(one)
    assert hand_over(bench, three.job) > monotonic()
    eventually(lambda: running(bench, owner) == digests(TWO, THREE))
    assert bench.private(owner) == [THREE, TWO]
    assert bench.in_flight.settlements["acks"] == 1, "nobody has waited for the answer"


def test_a_job_beyond_the_slots_asks(bench: Bench, owner: Facts) -> None:
    one, two, three = claim(bench, owner, ONE, TWO, THREE)
    assert all(hand_over(bench, claimed.job) for claimed in (one, two))
    assert hand_over(bench, three.job) == 0
    bench.in_flight.flush()
    assert running(bench, owner) == digests(ONE, TWO)


def test_a_task_with_early_ack_is_not_recorded(bench: Bench, owner: Facts) -> None:
    """Its ack may come first, and nothing would remove the record."""
    [one] = claim(bench, owner, ONE)
    assert bench.in_flight.hand_over(one.job) > monotonic()
    bench.in_flight.flush()
    assert running(bench, owner) == []


Spoil = Callable[[Bench, Facts, Job], object]


def doubt(bench: Bench, owner: Facts, job: Job) -> None:
    bench.in_flight.doubt = True


def ask_for_a_suspect(bench: Bench, owner: Facts, job: Job) -> None:
    assert bench.in_flight.claim_alone(owner.owner, "mail") is None


def hear_of_its_end(bench: Bench, owner: Facts, job: Job) -> None:
    bench.in_flight.taken_away(owner.owner)


def claim_as_another(bench: Bench, owner: Facts, job: Job) -> None:
    bench.in_flight.claim(bench.owner(elsewhere()).owner, ["mail"], 1, 1, [])


def settle(bench: Bench, owner: Facts, job: Job) -> None:
    bench.in_flight.drop(job)


@pytest.mark.parametrize(
    "spoil", [doubt, ask_for_a_suspect, hear_of_its_end, claim_as_another, settle]
)
def test_it_asks_when_something_else_may_be_true_by_now(
    bench: Bench, owner: Facts, spoil: Spoil
) -> None:
    one, two = claim(bench, owner, ONE, TWO)
    assert hand_over(bench, one.job)
    spoil(bench, owner, two.job)
    assert hand_over(bench, two.job) == 0


def test_a_claim_that_says_more_is_news_again(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    bench.in_flight.leases.void()
    bench.in_flight.claim(owner.owner, ["mail"], 1, 1, [])
    assert hand_over(bench, one.job)


def test_an_owner_that_is_not_registered_gets_none(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    bench.in_flight.leases.void()
    bench.client.zrem(bench.keys.owners, owner.owner)
    assert not bench.in_flight.claim(owner.owner, ["mail"], 1, 1, []).registered
    assert hand_over(bench, one.job) == 0


def test_news_gets_old() -> None:
    leases = Leases(5)
    leases.claimed("me", monotonic(), [])
    assert monotonic() < leases.until("me") <= monotonic() + START_LEASE
    leases.claimed("me", monotonic() - START_LEASE, [])
    assert leases.until("me") == 0


def test_it_lasts_no_longer_than_it_takes_to_be_taken_for_dead(bench: Bench, owner: Facts) -> None:
    """A claim is no heartbeat: the heart may have lost its connection alone."""
    leases = Leases(5)
    leases.heard(monotonic() - 1.4 * 5)
    job = bench.lists.job(owner.owner, "mail", ONE)
    leases.claimed("me", monotonic(), [job])
    assert monotonic() < leases.until("me") <= monotonic() + 0.1 * 5
    leases.heard(monotonic() - 1.6 * 5)
    assert leases.until("me") == leases.recorded(job) == 0
    leases.heard(monotonic())
    leases.claimed("me", monotonic(), [])
    assert leases.until("me")


# -- given back


def test_a_job_that_may_start_is_not_given_back(bench: Bench, owner: Facts) -> None:
    """Not even before the server knows that: its record may be behind the return."""
    [one] = claim(bench, owner, ONE)
    assert hand_over(bench, one.job)
    bench.client.hdel(bench.keys.running(owner.owner), one.job.claim_id)
    bench.in_flight.requeue([one.job])
    assert bench.queue() == []
    assert bench.private(owner) == [ONE]
    assert bench.in_flight.outlived == {one.job}


def test_the_control_gives_back_what_had_to_ask(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    bench.in_flight.leases.void()
    assert hand_over(bench, one.job) == 0
    bench.in_flight.requeue([one.job])
    assert bench.queue() == [ONE]


def test_a_job_that_its_pool_has_forgotten_is(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    hand_over(bench, one.job)
    bench.in_flight.ended(one.job)
    bench.in_flight.requeue([one.job])
    assert (bench.queue(), bench.private(owner)) == ([ONE], [])
    assert running(bench, owner) == []


def test_at_the_end_all_are(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    hand_over(bench, one.job)
    bench.in_flight.give_all_back()
    assert (bench.queue(), bench.private(owner)) == ([ONE], [])


def test_a_record_that_comes_late_does_not_start_what_was_given_back(
    bench: Bench, owner: Facts
) -> None:
    [one] = claim(bench, owner, ONE)
    bench.in_flight.requeue([one.job])
    bench.run(bench.lists.ack([], {one.job: digest(ONE)}))
    assert running(bench, owner) == []


# -- what was lost


def test_a_record_that_was_lost_is_sent_again(bench: Bench, owner: Facts) -> None:
    one, two = claim(bench, owner, ONE, TWO)
    kill_connections(bench.client)
    # The kernel takes it, or says at once that the other end is gone.
    sent = hand_over(bench, one.job)
    if sent:
        with pytest.raises(redis.ConnectionError):
            bench.in_flight.flush()
    assert bench.in_flight.doubt
    assert hand_over(bench, two.job) == 0
    bench.in_flight.flush()
    assert running(bench, owner) == digests(ONE)


def test_a_job_that_ended_meanwhile_is_only_settled(bench: Bench, owner: Facts) -> None:
    [one] = claim(bench, owner, ONE)
    kill_connections(bench.client)
    hand_over(bench, one.job)
    bench.in_flight.ack(one)
    if bench.in_flight.settlements["acks"]:
        try:
            bench.in_flight.flush()
        except redis.ConnectionError:
            bench.in_flight.flush()
    assert bench.private(owner) == []
    assert running(bench, owner) == []
