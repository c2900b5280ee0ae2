"""What is counted of runs, what of it is kept while the server is away, and how much at most."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery.exceptions import Ignore, Reject, Retry

from celery_superfetch.model.config import Config
from celery_superfetch.store import runs
from celery_superfetch.store.database import Database
from celery_superfetch.store.redis.scripts import Scripts
from celery_superfetch.store.runs import PAIRS_MAX, Runs
from celery_superfetch.worker.run_counts import RunCounts
from support.servers.server import free_port


def test_how_it_ended_is_what_it_raised(bench):
    counts = RunCounts()
    for error in (None, ValueError(), Retry(), Ignore(), Reject(), None):
        counts.count_run("mail", "t", error, 0.5)
    counts.count(bench.database)
    found = Runs(bench.database).counts()
    assert found.ends == {
        ("succeeded", "mail", "t"): 2,
        ("failed", "mail", "t"): 1,
        ("retried", "mail", "t"): 1,
        ("rejected", "mail", "t"): 2,
    }
    times = found.times["t"]
    assert times.seconds == pytest.approx(3)
    assert [times.buckets[bound] for bound in (0.1, 0.5, 1, float("inf"))] == [0, 6, 6, 6]


def test_workers_add_up_and_count_each_run_once(bench):
    for _ in range(2):
        counts = RunCounts()
        counts.count_run("mail", "t", None, 7200.5)
        counts.count(bench.database)
        counts.count(bench.database)
    found = Runs(bench.database).counts()
    assert found.ends == {("succeeded", "mail", "t"): 2}
    assert found.times["t"].buckets[7200] == 0
    assert found.times["t"].buckets[float("inf")] == 2


def test_while_the_server_is_away_counts_are_kept(bench):
    counts = RunCounts()
    counts.count_run("mail", "t", None, 1)
    away = Database(redis.Redis(port=free_port(), retry=None), Config())
    with pytest.raises(redis.ConnectionError):
        counts.count(away)
    counts.count_run("mail", "t", None, 1)
    counts.count(bench.database)
    assert Runs(bench.database).counts().ends == {("succeeded", "mail", "t"): 2}


def test_one_script_adds_so_many_counters_and_each_once(bench, monkeypatch):
    """Where the server goes in the middle, what it has is not added again."""
    counts, add = RunCounts(), Scripts.run
    for number in range(PAIRS_MAX):
        counts.count_run(f"q{number}", f"t{number}", None, 1)
    sent = list[int]()

    def run(self: Scripts, name: str, keys: Any, args: Any) -> Any:
        sent.append(len(args))
        if len(sent) == 2:
            raise redis.ConnectionError
        return add(self, name, keys, args)

    monkeypatch.setattr(Scripts, "run", run)
    with pytest.raises(redis.ConnectionError):
        counts.count(bench.database)
    counts.count(bench.database)
    assert max(sent) <= 2 * runs.COUNTERS_PER_SCRIPT + 20
    assert sum(Runs(bench.database).counts().ends.values()) == PAIRS_MAX


def test_rows_are_bounded_and_no_run_is_left_out(bench):
    counts = RunCounts()
    for number in range(PAIRS_MAX + 7):
        counts.count_run("mail", f"t{number}", None, 1)
    counts.count_run("mail", "t0", None, 1)
    counts.count(bench.database)
    ends = Runs(bench.database).counts().ends
    assert len(ends) == PAIRS_MAX + 1
    assert ends["succeeded", "mail", "t0"] == 2
    assert ends["succeeded", "mail", ""] == 7


def test_the_queues_of_one_worker_are_bounded(bench):
    counts = RunCounts()
    for number in range(3 * PAIRS_MAX):
        counts.count_run(f"tenant-{number}", "t", None, 1)
    counts.count(bench.database)
    ends = Runs(bench.database).counts().ends
    assert len(ends) == 2 * PAIRS_MAX + 1
    assert sum(ends.values()) == 3 * PAIRS_MAX
    assert ends["succeeded", "", ""] == PAIRS_MAX
    counts.count_run("one more", "another", None, 1)
    counts.count(bench.database)
    assert Runs(bench.database).counts().ends["succeeded", "one more", "another"] == 1


def test_the_rows_of_all_workers_are_bounded_and_no_run_is_left_out(bench, monkeypatch):
    """Each dynamic queue left a row for ever."""
    monkeypatch.setattr(runs, "ROWS_MAX", 20)
    for number in range(50):  # each a worker of its own
        counts = RunCounts()
        counts.count_run(f"tenant-{number}", f"t{number}", None, 1)
        counts.count_run("mail", "t", None, 1)
        counts.count(bench.database)
    found = Runs(bench.database).counts()
    assert bench.client.zcard(bench.keys.run_rows) <= 20 + 2
    assert sum(found.ends.values()) == 100
    assert found.ends["succeeded", "mail", "t"] == 50
    assert sum(times.buckets[float("inf")] for times in found.times.values()) == 100


def test_what_was_silent_for_a_week_goes_and_a_histogram_goes_as_a_whole(bench):
    counts = RunCounts()
    for task, seconds in (("old", 0.1), ("old", 7200.5), ("new", 0.1), ("new", 7200.5)):
        counts.count_run(f"of {task}", task, None, seconds)
    counts.count(bench.database)
    rows = bench.client.zrange(bench.keys.run_rows, 0, -1)
    week = runs.SILENT_MS + 60_000
    for row in rows:
        if row.endswith(b"old"):
            bench.client.zincrby(bench.keys.run_rows, -week, row)
    counts.count_run("of new", "new", None, 0.1)  # its other times are as old
    counts.count(bench.database)
    found = Runs(bench.database).counts()
    assert found.ends == {("succeeded", "of new", "new"): 3}
    assert {*found.times} == {"new"}
    assert found.times["new"].buckets[float("inf")] == 3
    assert not [name for name in bench.client.hgetall(bench.keys.runs) if b"old" in name]
    for key in (bench.keys.runs, bench.keys.run_rows):
        assert 0 < bench.client.pttl(key) <= runs.SILENT_MS, "a fleet that is gone leaves none"


def test_what_a_hand_has_written_there_is_passed_over(bench):
    bench.client.hset(bench.keys.runs, mapping={"odd": 1, "succeeded": 2, "seconds\tx": 3})
    found = Runs(bench.database).counts()
    assert (found.ends, found.times) == ({}, {})
