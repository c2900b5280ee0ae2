"""What metrics count: by queue and task, bounded, and in the step that moves the job."""

from __future__ import annotations

import pytest

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.model.job import Job
from celery_superfetch.store.queues import LISTS_PER_SCRIPT
from celery_superfetch.store.stats import (
    DEATHS_DAYS,
    LOSS_PAUSE_S,
    NO_LOSSES,
    RECOVERY_BUCKETS,
    Stats,
    recovery_counters,
)
from support.workers.bench import payload

LOW = "mail\x06\x169"


def test_what_became_of_jobs_is_counted_by_queue_and_task(bench):
    stats = Stats(bench.database)
    bench.dead_owner([payload("1"), payload("2", task="shop.charge")])
    bench.dead_owner([payload("3")], queue=LOW, lists=[LOW])
    bench.reaper().reap()
    bench.killed(payload("4"))
    given = [one.job for one in bench.claimed(bench.owner(), payload("5"), queue="aside")]
    assert bench.requeue(*given) == 1
    assert bench.requeue(*given) == 0
    stats.record_ownership_lost(given[0])
    counts = stats.counts()
    assert counts.jobs == {
        ("killed", "mail", "shop.note"): 1,
        ("ownership_lost", "aside", "shop.note"): 1,
        ("recovered", "mail", "shop.charge"): 1,
        ("recovered", "mail", "shop.note"): 1,
        ("recovered", LOW, "shop.note"): 1,
        ("requeued", "aside", "shop.note"): 1,
    }
    totals = {"killed": 1, "ownership_lost": 1, "owners_reaped": 2, "recovered": 3, "requeued": 1}
    assert counts.totals == totals


@pytest.mark.parametrize(
    ("raw", "task"),
    [
        (payload("1"), "shop.note"),
        (payload("1").replace(b'": ', b'":'), "shop.note"),  # of another JSON library
        (payload("1", task="true").replace(b"W1tdLCB7fSwge31d", rb"[\"task\": \"body\"]"), "true"),
        (payload("1", task="x" * 200), "x" * 200),
        (payload("1", task="x" * 201), ""),
        (b'{"task": "with\x1b[2Jcontrol"}', ""),
        (b'{"task": 7}', ""),
        (b"\xff\x00 no message", ""),
    ],
)
def test_a_task_is_what_the_headers_say(bench, raw, task):
    """A very long one is counted without its name."""
    stats = Stats(bench.database)
    stats.record_ownership_lost(Job("web-1|1|x", "mail", raw))
    assert stats.counts().jobs == {("ownership_lost", "mail", task): 1}


def test_losses_of_the_server_are_counted_by_event(bench):
    """An event ends with an hour without a loss; the total goes on."""
    stats, key = Stats(bench.database), bench.keys.stats
    gone = [Job("", "mail", payload(n), f"{n}:mail") for n in range(3)]
    assert stats.counts().losses == NO_LOSSES
    stats.record_lost_by_server(gone[:2])
    first = stats.counts().losses
    assert first.jobs == 2
    assert first.since == first.last > 0
    stats.record_lost_by_server(gone[2:])
    second = stats.counts().losses
    assert (second.jobs, second.since) == (3, first.since)
    assert second.last >= first.last
    past = bench.database.server_time() - LOSS_PAUSE_S * 1000 - 1
    bench.client.hset(key, mapping={"lost\tsince": past, "lost\tat": past})
    stats.record_lost_by_server(gone[:1])
    third = stats.counts().losses
    assert third.jobs == 1
    assert third.since == third.last >= second.last
    assert stats.counts().totals["lost"] == 4


@pytest.mark.parametrize("fields", [{"lost": 500, "lost\tat": 1}, {"lost\tat": 10**14}])
def test_losses_of_before_the_count_or_of_a_later_clock_are_another_event(bench, fields):
    bench.client.hset(bench.keys.stats, mapping=fields)
    stats = Stats(bench.database)
    stats.record_lost_by_server([Job("", "mail", payload("1"), "1:mail")])
    losses = stats.counts().losses
    assert losses.jobs == 1
    assert losses.since == losses.last < 10**14


def test_rows_are_bounded_and_none_is_lost(bench):
    stats = Stats(bench.database)
    bench.client.hset(bench.keys.stats, mapping={f"recovered\tq\t{n}": 1 for n in range(1999)})
    for number in range(600):
        stats.record_ownership_lost(
            Job("web-1|1|x", f"q{number}", payload("1", task=f"t{number % 3}"))
        )
    bench.killed(payload("2"), queue="q0")
    counts = stats.counts()
    assert len(counts.jobs) < 2510
    told = {row: n for row, n in counts.jobs.items() if row[0] != "recovered"}
    assert sum(told.values()) == 601
    assert told["ownership_lost", "q5", ""] == 1, "beyond 2,000 there is no task"
    assert told["ownership_lost", "", ""] > 50, "beyond 2,500 there is no queue either"
    assert told["killed", "", ""] == 1
    stats.record_ownership_lost(Job("web-1|1|x", "q5", payload("1", task="t2")))
    assert stats.counts().jobs["ownership_lost", "q5", ""] == 2, "known rows go on"


@pytest.mark.parametrize("rows", [1999, 2000, 2499, 2500])
def test_rows_are_bounded_to_the_field(bench, rows):
    """With a row that is known it is counted as ever."""
    stats = Stats(bench.database)
    stats.record_ownership_lost(Job("web-1|1|x", "known", payload("1", task="known")))
    bench.client.hset(bench.keys.stats, mapping={f"x{n}": 1 for n in range(rows - 2)})
    assert bench.client.hlen(bench.keys.stats) == rows, "with the number of all"
    for queue, task in (("known", "known"), ("new", "new")):
        stats.record_ownership_lost(Job("web-1|1|x", queue, payload("1", task=task)))
    told = stats.counts().jobs
    assert told["ownership_lost", "known", "known"] == 2
    row = ("new" if rows < 2500 else "", "new" if rows < 2000 else "")
    assert told[("ownership_lost", *row)] == 1


def test_only_registered_tasks_have_names(bench):
    """A producer, who may name any task, used up 2,001 rows for ever."""
    stats = Stats(bench.database)
    bench.database.is_registered = {"shop.note"}.__contains__
    jobs = [payload(n, task=f"nobody.knows{n}") for n in range(3)]
    bench.dead_owner([*jobs, payload("a")])
    bench.reaper().reap()
    bench.killed(*jobs)
    given = [one.job for one in bench.claimed(bench.owner(), *jobs, queue="aside")]
    bench.requeue(*given)
    stats.record_ownership_lost(given[0])
    stats.record_lost_by_server(given)
    assert stats.counts().jobs == {
        ("killed", "mail", ""): 3,
        ("lost", "aside", ""): 3,
        ("ownership_lost", "aside", ""): 1,
        ("recovered", "mail", ""): 3,
        ("recovered", "mail", "shop.note"): 1,
        ("requeued", "aside", ""): 3,
    }


def test_a_row_that_has_not_grown_for_a_week_goes_with_a_pass(bench):
    stats, week = Stats(bench.database), DEATHS_DAYS * 86_400_000
    bench.killed(*(payload(n, task=f"t{n}") for n in range(120)))
    before = {f"killed\tmail\tt{n}": bench.database.server_time() - week - 5 for n in range(110)}
    bench.client.zadd(bench.keys.stats_rows, before)
    for left in (20, 10, 10):
        stats.record_pass({"by": "a test", "seconds": 0, "owners": 0, "errors": 0}, {})
        assert len(stats.counts().jobs) == bench.client.zcard(bench.keys.stats_rows) == left
    assert stats.counts().totals["killed"] == 120, "the total stays"
    bench.killed(payload("again", task="t1"))
    assert stats.counts().jobs["killed", "mail", "t1"] == 1, "it begins anew"


def test_passes_and_recoveries_are_summed_up(bench):
    stats, reaper = Stats(bench.database), bench.reaper()
    lists = [f"q{n}" for n in range(LISTS_PER_SCRIPT + 1)]
    bench.owner(lists=lists)
    idle, busy = bench.dead_owner(), bench.dead_owner([payload("1")])
    for owner in (idle, busy):
        bench.age(owner, 4000)
    record_pass(reaper, reaper.reap())
    record_pass(reaper, reaper.reap())
    counts = stats.counts()
    assert (counts.passes["number"], counts.passes["owners"], counts.passes["errors"]) == (2, 4, 0)
    assert set(counts.passes) == {"number", "owners", "errors", "ms"}
    assert [counts.recoveries.buckets[at] for at in (2, 5, 10, float("inf"))] == [0, 1, 1, 1]
    assert 4 <= counts.recoveries.seconds < 5, "whose owner held nothing does not count"
    assert "pass" not in counts.totals


def test_each_time_has_its_bucket():
    assert dict(recovery_counters(1000)) == {"recovery\t1": 1, "recovery\tms": 1000}
    assert dict(recovery_counters(1001))["recovery\t2"] == 1
    assert dict(recovery_counters(10**9))["recovery\tinf"] == 1
    assert sorted(RECOVERY_BUCKETS) == list(RECOVERY_BUCKETS)


def test_a_key_of_another_type_holds_up_no_job(bench):
    bench.client.set(bench.keys.stats, "no hash")
    bench.dead_owner([payload("1")])
    assert bench.reaper().reap().recovered == 1
    assert bench.queue() == [payload("1")]
