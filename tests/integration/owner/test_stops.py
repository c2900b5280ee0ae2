"""What a stopping worker gives back: a run that it cut short is a stop, what waited is nothing."""

from __future__ import annotations

from typing import Any

from celery_superfetch.inspector import Inspector
from celery_superfetch.model.job import Claimed, digest
from celery_superfetch.model.strikes import STOPS_NAMED, Decision, Limits, decide
from celery_superfetch.signals import job_recovering
from support.workers.bench import Bench, payload

JOB, OTHER = payload("job"), payload("other")
SENDER = "app of test_stops"


def run(bench: Bench, owner: Any) -> Claimed:
    """Claim the next job, and hand it to a pool."""
    [claimed] = bench.take(owner, most=1)
    assert bench.hand_over(claimed)
    return claimed


def stop(bench: Bench, *claimed: Claimed) -> None:
    """The worker ends what runs, and gives all of it back, the newest claim first."""
    for one in claimed:
        bench.driver.stop_run(one.job)
    bench.driver.requeue([one.job for one in reversed(claimed)])


def test_what_ran_is_counted_and_what_waited_is_not(bench, owner):
    bench.push("mail", JOB, OTHER)
    ran = run(bench, owner)
    [waited] = bench.take(owner, most=1)
    stop(bench, ran, waited)
    assert bench.queue() == [JOB, OTHER]
    counted = bench.counters(JOB)
    assert (counted.stops, counted.strikes, counted.recoveries) == (1, 0, 0)
    [entry] = counted.history
    assert (entry["strike"], entry["stop"], entry["owner"]) == ("", True, owner.owner)
    assert bench.counters(OTHER).stops == 0
    again = run(bench, owner)
    assert again.counters.as_header() == {
        "recoveries": 0,
        "strikes": 0,
        "requeues": 1,
        "stops": 1,
    }
    bench.driver.finish(again)
    bench.driver.flush()
    assert bench.counters(JOB).stops == 0, "settled, it is forgotten"


def test_a_run_that_is_being_ended_stays_recorded(bench, owner):
    """It may not have ended yet: if its process dies by it, that is a strike."""
    bench.push("mail", JOB)
    claimed = run(bench, owner)
    bench.driver.flush()
    bench.driver.stop_run(claimed.job)
    bench.driver.flush()
    assert bench.recorded(owner) == [digest(JOB)]


def test_from_its_third_stop_on_a_job_goes_to_the_back(bench, owner):
    bench.push("mail", JOB, OTHER)
    for queue in ([JOB, OTHER], [JOB, OTHER], [OTHER, JOB]):
        stop(bench, run(bench, owner))
        assert bench.queue() == queue


def test_a_worker_that_ends_counts_what_still_ran(bench, owner):
    bench.push("mail", JOB, OTHER)
    run(bench, owner)
    bench.take(owner, most=1)
    bench.driver.leave()
    assert bench.queue() == [JOB, OTHER]
    assert [bench.counters(job).stops for job in (JOB, OTHER)] == [1, 0]


def test_a_requeue_that_comes_twice_counts_once(bench, owner):
    bench.push("mail", JOB)
    claimed = run(bench, owner)
    call = bench.lists.requeue([claimed.job], "front", 0, {claimed.job})
    assert [bench.run(call) for _ in range(2)] == [[], [1]]
    assert bench.counters(JOB).stops == 1


def test_from_the_tenth_stop_on_a_job_is_named_until_it_is_settled(bench, owner):
    inspector = Inspector(bench.database)
    bench.push("mail", JOB, OTHER)
    for number in range(1, STOPS_NAMED + 1):
        bench.client.delete("mail")
        bench.push("mail", JOB)
        assert not inspector.strikes.stopped(), number
        stop(bench, run(bench, owner))
    [named] = inspector.strikes.stopped()
    assert (named["task"], named["id"], named["queue_list"]) == ("shop.note", "job", "mail")
    assert named["stops"] == STOPS_NAMED
    assert bench.client.ttl(bench.keys.stopped) > 0
    done = run(bench, owner)
    bench.driver.finish(done)
    bench.driver.flush()
    assert not inspector.strikes.stopped()


def test_a_job_over_its_stop_limit_is_killed_at_its_next_claim(bench, owner):
    """The worker that gave it back was stopping, and decided nothing."""
    limits = Limits(lambda _: 3, 20, lambda _: 2)

    def guard(recovery: Any, **_: Any) -> Decision:
        return decide(recovery)

    job_recovering.connect(guard, sender=SENDER)
    bench.push("mail", JOB)
    for _ in range(2):
        claimed = run(bench, owner)
        assert bench.driver.kill_if_over_limit(claimed.job, SENDER, limits) is None
        stop(bench, claimed)
    [claimed] = bench.take(owner)
    dead = bench.driver.kill_if_over_limit(claimed.job, SENDER, limits)
    assert (dead.stops, dead.strikes) == (2, 0)
    assert dead.reason.startswith("2 of its runs were cut short because their worker was stopping")
    assert [entry["stop"] for entry in dead.history] == [True, True]
    assert bench.queue() == bench.private(owner) == []


def test_before_its_last_stop_a_job_waits_for_a_solo_run(bench, owner):
    """Whatever stops a worker cuts all short that run there."""
    bench.push("mail", JOB)
    stop(bench, run(bench, owner))
    [claimed] = bench.take(owner)
    bench.driver.put_on_probation(claimed.job)
    assert bench.on_probation() == [JOB]
    assert bench.queue() == bench.private(owner) == []
    assert bench.driver.suspect_lists == {"mail"}
    alone = bench.driver.claim_suspect(owner.owner, "mail")
    assert (alone.counters.stops, alone.solo_runs) == (1, 1)
