"""What waits is given back, and what was handed over is not."""

from __future__ import annotations

import pytest
import redis

from support.workers.bench import payload

ONE, TWO, THREE = payload(1), payload(2), payload(3)


def test_a_job_that_was_handed_over_is_not_given_back(bench, owner):
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    bench.driver.close([one.job])
    assert (bench.queue(), bench.private(owner)) == ([], [ONE])
    assert bench.driver.detached_count == 1, "it counts against the prefetch"
    bench.driver.finish(one)
    bench.driver.flush()
    assert bench.private(owner) == []
    assert bench.recorded(owner) == []
    assert not bench.driver.detached_count


def test_the_control_gives_back_a_job_that_nobody_was_said_to_have(bench, owner):
    """Which is right, too, for one that its pool says that it has forgotten."""
    [one] = bench.take(owner, ONE)
    bench.hand_over(one)
    bench.driver.requeue([one.job])
    assert (bench.queue(), bench.private(owner)) == ([ONE], [])
    assert bench.recorded(owner) == []


def test_a_job_that_was_given_back_does_not_start(bench, owner):
    """Claimed again by the same owner: the first delivery is still the wrong one to run."""
    [one] = bench.take(owner, ONE)
    bench.driver.requeue([one.job])
    [again] = bench.take(owner)
    assert bench.hand_over(one) == 0
    assert bench.hand_over(again)


def test_nor_does_one_that_cannot_be_given_back_yet(bench, owner):
    [one] = bench.take(owner, ONE)
    bench.client.set("mail", "no queue")
    bench.driver.requeue([one.job])
    assert bench.private(owner) == [ONE]
    assert bench.hand_over(one) == 0


def test_an_ack_that_is_refused_with_a_requeue_is_not_logged_as_one(bench, owner, caplog):
    """The log had "Requeue failed (jobs=0)"."""
    [one] = bench.take(owner, ONE)
    other = bench.owner()
    [acked] = bench.take(other, TWO)
    bench.driver.finish(acked)
    bench.client.delete(bench.keys.private(other.owner))
    bench.client.set(bench.keys.private(other.owner), "a text")
    bench.driver.requeue([one.job])
    bench.driver.write_log()
    assert bench.queue() == [ONE]
    assert "Requeue failed" not in caplog.text
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        bench.driver.flush()


def test_only_those_that_are_handed_over_first_can_be_taken_back(bench, owner):
    """Whoever runs jobs as they come may have begun."""
    one, two, three = bench.take(owner, ONE, TWO, THREE)
    for claimed in (two, three):
        bench.driver.reserve(claimed.job)
    bench.hand_over(three)
    assert bench.driver.requeue_reserved([three.job, two.job, one.job]) == [two.job]
    assert bench.queue() == [TWO]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_job_with_which_the_pool_did_not_begin_waits_again(bench, owner, is_closed):
    """If its channel was closed meanwhile, its request is forgotten: another worker runs it."""
    [one] = bench.take(owner, ONE)
    assert bench.hand_over(one)
    if is_closed:
        bench.driver.close([one.job])
    bench.driver.withdraw_start(one.job)
    assert bench.driver.is_reserved(one.job) is not is_closed
    bench.driver.flush()
    assert bench.queue() == [ONE] * is_closed
    assert (one.job in bench.driver) is not is_closed


def test_a_run_that_was_cut_short_is_requeued_at_the_close_and_not_before(bench, owner):
    """It may not have ended: a solo pool's job unwinds in the thread that is being stopped."""
    one, two = bench.take(owner, ONE, TWO)
    bench.hand_over(one)
    bench.driver.stop_run(one.job)
    bench.driver.reserve(two.job)
    assert bench.driver.requeue_reserved([two.job, one.job]) == [two.job]
    bench.driver.close([one.job])
    assert bench.queue() == [ONE, TWO]


def test_at_the_end_all_are_given_back(bench, owner):
    [one] = bench.take(owner, ONE)
    bench.hand_over(one)
    bench.driver.leave()
    assert (bench.queue(), bench.private(owner)) == ([ONE], [])


def test_of_some_that_are_given_back_those_go_that_are_there(bench, owner):
    """An operator has killed one, say; the same bytes under another claim are another job."""
    one, two, same = bench.take(owner, ONE, TWO, ONE)
    bench.client.hdel(bench.keys.private(owner.owner), one.job.claim_id)
    bench.driver.requeue([two.job, one.job])
    assert bench.queue() == [TWO]
    assert bench.held(owner) == [same.job]
    assert [*bench.driver] == [same.job]


def test_what_a_return_leaves_in_redis_is_bounded(bench, owner):
    """C3. However many are given back, nothing is kept of each that somebody has to remove."""
    kept = []
    for _ in range(20):
        bench.driver.requeue([claimed.job for claimed in bench.take(owner, ONE, TWO)])
        bench.client.delete("mail")
        kept.append((bench.key_names(), bench.client.hlen(bench.keys.owner_record(owner.owner))))
    assert kept[0] == kept[-1]
    assert bench.keys.private(owner.owner) not in kept[-1][0]
