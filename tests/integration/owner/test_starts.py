"""A job starts when it is recorded, and its owner was heard of lately."""

from __future__ import annotations

from time import monotonic

import pytest
import redis

from celery_superfetch.model.job import Job, digest
from celery_superfetch.model.owner_record import OwnerRecord
from support.servers.commands import calls
from support.servers.faults import kill_connections
from support.waiting import eventually
from support.workers.bench import Bench, payload

ONE, TWO, THREE = payload(1), payload(2), payload(3)


def digests(*payloads: bytes) -> list[str]:
    return sorted(map(digest, payloads))


def running(bench: Bench, owner: OwnerRecord) -> frozenset[str]:
    """Claims that the server has as running."""
    return bench.lists.held(owner.owner).running


# -- how long it may


def test_nothing_starts_while_the_owner_is_not_heard(bench, owner):
    """B. The verdict of others needs two heartbeats of silence, and one and a half are over."""
    one, two = bench.take(owner, ONE, TWO, starts=1)
    bench.driver.heartbeat_confirmed(owner.owner, ago_s=1.6 * 5)
    assert bench.hand_over(one) == bench.hand_over(two) == 0
    assert bench.driver.may_start(one.job)
    assert bench.driver.may_start(two.job)
    bench.driver.heartbeat_confirmed(owner.owner)
    assert bench.hand_over(one) > monotonic()


def test_nothing_of_a_former_self_starts(bench, owner):
    [one] = bench.take(owner, ONE)
    bench.driver.reserve(one.job)
    assert not bench.driver.is_former(one.job)
    bench.driver.heartbeat_confirmed("somebody|1|new")
    assert bench.driver.is_former(one.job)
    assert bench.hand_over(one) == 0
    bench.driver.learn(owner.owner)
    assert not bench.driver.may_start(one.job)


# -- recorded by the claim


def test_a_claim_records_the_first_of_its_jobs_as_running(bench, owner):
    one, two, three = bench.take(owner, ONE, TWO, THREE, starts=2)
    assert bench.recorded(owner) == digests(ONE, TWO)
    assert running(bench, owner) == {one.job.claim_id, two.job.claim_id}
    before = calls(bench.client, "hdel")
    assert bench.hand_over(one)
    assert bench.hand_over(two)
    assert calls(bench.client, "hdel") == before, "it is recorded already"
    assert bench.hand_over(three)
    eventually(lambda: bench.recorded(owner) == digests(ONE, TWO, THREE))


def test_a_claim_that_is_not_asked_to_records_no_start(member, bench):
    """As ``basic_get`` claims: its caller may never start the job."""
    bench.push("mail", ONE)
    [lease] = member.claim(["mail"], 1, 1).leases
    assert bench.lists.held(member.name).running == frozenset()
    assert lease.has_waiting_note


def test_what_a_blocking_read_brought_starts_first(bench, owner):
    bench.push("mail", TWO)
    bench.land(owner, "mail", ONE)
    claims = bench.claim(owner, landed=["mail"], starts=1)
    assert [claimed.job.payload for claimed in claims.jobs] == [ONE, TWO]
    assert claims.started == 1
    assert bench.recorded(owner) == digests(ONE)


def test_fewer_jobs_than_might_start_are_all_recorded(bench, owner):
    [one] = bench.take(owner, ONE, starts=5)
    assert bench.recorded(owner) == digests(ONE)
    [two] = bench.take(owner, TWO)
    assert one.job.claim_id != two.job.claim_id


def test_one_that_is_to_wait_is_not_recorded_and_so_are_those_behind_it(bench, owner):
    bench.take(owner, ONE, payload(2, eta="2030-01-01T00:00:00"), THREE, starts=3)
    assert bench.recorded(owner) == digests(ONE)


def test_of_two_of_the_same_bytes_one_is_recorded(bench, owner):
    one, two = bench.take(owner, ONE, ONE, starts=1)
    assert running(bench, owner) == {one.job.claim_id}
    bench.driver.finish(one)
    assert bench.hand_over(two)
    bench.driver.flush()
    assert running(bench, owner) == {two.job.claim_id}


def test_a_job_that_only_waits_does_not_count_as_running(bench, owner):
    """For its rate limit, say."""
    one, two = bench.take(owner, ONE, TWO, starts=2)
    bench.driver.deliver(one.job)
    bench.hand_over(two)
    bench.driver.deliver(two.job)
    bench.driver.flush()
    assert bench.recorded(owner) == digests(TWO)
    assert bench.hand_over(one)
    bench.driver.flush()
    assert bench.recorded(owner) == digests(ONE, TWO), "it runs now"


def test_a_job_that_was_acked_unrun_costs_no_question(bench, owner):
    """Revoked, say."""
    [one] = bench.take(owner, ONE, starts=1)
    bench.driver.finish(one)
    before = calls(bench.client, "hdel")
    bench.driver.deliver(one.job)
    assert calls(bench.client, "hdel") == before
    bench.driver.flush()
    assert bench.recorded(owner) == []


def test_a_job_that_was_acked_while_it_was_delivered_is_acked_once(bench, owner, lost):
    """A second ack would find nothing, as if the job had been taken from this owner."""
    [one] = bench.take(owner, ONE, starts=1)
    assert bench.hand_over(one)
    bench.driver.finish(one)
    bench.driver.post()
    bench.driver.deliver(one.job)
    bench.driver.flush()
    assert (bench.private(owner), lost) == ([], [])


# -- recorded when the pool gets it


def test_a_job_is_recorded_with_the_ack_that_made_room(bench, owner):
    one, two, three = bench.take(owner, ONE, TWO, THREE)
    assert bench.hand_over(one)
    assert bench.hand_over(two)
    eventually(lambda: running(bench, owner) == {one.job.claim_id, two.job.claim_id})
    bench.driver.finish(one)
    before = calls(bench.client, "hdel")
    assert bench.hand_over(three)
    eventually(lambda: running(bench, owner) == {two.job.claim_id, three.job.claim_id})
    assert calls(bench.client, "hdel") == before + 1
    assert bench.private(owner) == [THREE, TWO]
    assert bench.driver.settled_count == 1, "nobody has waited for the answer"


def test_a_task_with_early_ack_is_not_recorded(bench, owner):
    """Its ack may come first, and nothing would remove the record."""
    [one] = bench.take(owner, ONE)
    assert bench.driver.start(one.job, record=False)
    bench.driver.flush()
    assert bench.recorded(owner) == []


def test_a_job_whose_record_cannot_be_sent_does_not_start(bench, owner):
    one, two = bench.take(owner, ONE, TWO)
    kill_connections(bench.client)
    # The kernel takes the first, or says at once that the other end is gone.
    if bench.hand_over(one):
        with pytest.raises(redis.ConnectionError):
            bench.driver.flush()
    assert bench.driver.needs_reconcile
    assert not bench.hand_over(two), "first comes a look at what the lost reply spoke of"
    assert not bench.driver.reconcile(owner.owner, {"mail": 0})
    assert bench.hand_over(two), "a new connection takes it"
    bench.driver.flush()
    assert digest(TWO) in bench.recorded(owner)


def test_a_job_that_ended_meanwhile_is_only_settled(bench, owner):
    [one] = bench.take(owner, ONE)
    kill_connections(bench.client)
    bench.hand_over(one)
    bench.driver.finish(one)
    try:
        bench.driver.flush()
    except redis.ConnectionError:
        bench.driver.flush()
    assert bench.private(owner) == []
    assert bench.recorded(owner) == []


def test_a_job_with_which_the_pool_did_not_begin_does_not_count_as_running(bench, owner):
    """Its note is put back once."""
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    bench.driver.flush()
    assert bench.recorded(owner) == digests(ONE)
    bench.driver.withdraw_start(one.job)
    bench.driver.flush()
    assert bench.recorded(owner) == []
    before = calls(bench.client, "hset")
    bench.driver.withdraw_start(one.job)
    bench.driver.flush()
    assert calls(bench.client, "hset") == before


def test_a_job_that_is_started_again_before_its_note_is_put_back_stays_recorded(bench, owner):
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    bench.driver.flush()
    bench.driver.withdraw_start(one.job)
    before = calls(bench.client, "hdel", "hset")
    assert bench.hand_over(one)
    bench.driver.flush()
    assert calls(bench.client, "hdel", "hset") == before
    assert bench.recorded(owner) == digests(ONE)


def test_a_start_behind_a_note_whose_reply_is_unread_is_recorded(bench, owner):
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    bench.driver.flush()
    bench.driver.withdraw_start(one.job)
    bench.driver.post()
    assert bench.hand_over(one)
    bench.driver.flush()
    assert bench.recorded(owner) == digests(ONE)


def test_a_job_that_the_server_refuses_to_move_does_not_count_as_running_while_it_waits(
    bench, owner
):
    """Its claim had recorded its start: the end of this process was a strike for it."""
    [one] = bench.take(owner, ONE, starts=1)
    bench.driver.requeue_later(one.job)
    assert bench.driver.has_unsent, "the next tick puts its note back"
    bench.driver.post()
    assert not bench.driver.has_unsent, "and no other one"
    bench.driver.flush()
    assert (bench.private(owner), bench.recorded(owner)) == ([ONE], [])
    before = calls(bench.client, "hset")
    bench.driver.flush()
    assert calls(bench.client, "hset") == before
    bench.driver.retry_requeue_now(one.job)
    bench.driver.flush()
    assert (bench.queue(), bench.private(owner)) == ([ONE], [])


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_run_whose_requeue_is_refused_counts_if_it_was_cut_short(bench, owner, is_cut_short):
    """It may not have ended yet. One that ended by itself does not count."""
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    bench.driver.flush()
    if is_cut_short:
        bench.driver.stop_run(one.job)
    bench.client.set("mail", "no queue")
    bench.driver.requeue([one.job])
    bench.driver.flush()
    assert not bench.driver.has_unsent
    assert bench.recorded(owner) == digests(ONE) * is_cut_short


# -- a suspect, alone


@pytest.fixture
def suspect(bench: Bench, owner: OwnerRecord) -> Job:
    """A job on probation that its owner has claimed."""
    bench.client.lpush(bench.keys.probation("mail"), payload("suspect"))
    bench.client.hset(bench.keys.history(digest(payload("suspect"))), "solo_runs", 1)
    claimed = bench.driver.claim_suspect(owner.owner, "mail")
    assert claimed is not None
    return claimed.job


def test_a_suspect_that_was_not_started_goes_back_on_probation(bench, owner, suspect):
    bench.driver.requeue([suspect])
    assert bench.on_probation() == [payload("suspect")]
    assert bench.driver.solo is None
    assert bench.recorded(owner) == []
    assert bench.driver.claim_suspect(owner.owner, "mail"), "and has its turn again"


def test_a_suspect_that_waits_for_its_time_keeps_nothing_else_from_starting(bench, owner, suspect):
    """Whoever decoded it lives, and it may be due in a month."""
    bench.driver.server_time_is(0)
    assert bench.driver.park(suspect, 1e15)
    bench.driver.flush()
    assert bench.driver.solo is None
    assert bench.recorded(owner) == []


def test_a_suspect_that_was_started_stays(bench, owner, suspect):
    assert bench.driver.start(suspect)
    bench.driver.close([suspect])
    assert bench.driver.solo == suspect, "it runs"
    assert bench.on_probation() == []


def test_what_is_claimed_beside_a_suspect_does_not_start(bench, owner, suspect):
    """B. With both recorded its crash would blame neither. The control: another channel's claim,
    once it has been alone for long enough."""
    assert bench.driver.start(suspect)
    bench.take(owner, ONE, starts=1)
    assert bench.recorded(owner) == [digest(suspect.payload)]
    bench.driver.end_solo()
    bench.take(owner, TWO, starts=1)
    assert bench.recorded(owner) == sorted(digests(suspect.payload, TWO))


def test_no_suspect_is_claimed_beside_what_has_just_started(bench, owner):
    """B. A thread of the pool hands over the next job while the loop finds that nothing runs: the
    claim of the suspect took its record away, and its crash would have been nobody's."""
    [one] = bench.take(owner, ONE)
    bench.client.lpush(bench.keys.probation("mail"), payload("suspect"))
    assert bench.hand_over(one)
    assert bench.driver.claim_suspect(owner.owner, "mail") is None
    assert bench.recorded(owner) == digests(ONE)
    bench.driver.finish(one)
    assert bench.driver.claim_suspect(owner.owner, "mail")


# -- no longer than its claim


def test_no_record_outlives_its_claim(bench, owner):
    """What a lost or a late call left would forbid other starts, and share the blame of a crash."""
    one, two = bench.take(owner, ONE, TWO, starts=2)
    late = bench.lists.settle(owner.owner, [], [one.job])
    bench.driver.finish(one)
    bench.driver.requeue([two.job])
    bench.driver.flush()
    assert bench.run(late) == 0
    assert not bench.client.exists(bench.keys.private(owner.owner))
