"""What is counted of runs, what of it is kept while the server is away, and how much at most."""

from __future__ import annotations

import pytest
import redis
from celery.exceptions import Ignore, Reject, Retry

from celery_superfetch.model.config import Config
from celery_superfetch.store.database import Database
from celery_superfetch.store.runs import MOST, Runs
from celery_superfetch.worker.run_counts import RunCounts
from support.servers.server import free_port


def test_how_it_ended_is_what_it_raised(bench):
    counts = RunCounts()
    for error in (None, ValueError(), Retry(), Ignore(), Reject(), None):
        counts.note("mail", "t", error, 0.5)
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
        counts.note("mail", "t", None, 7200.5)
        counts.count(bench.database)
        counts.count(bench.database)
    found = Runs(bench.database).counts()
    assert found.ends == {("succeeded", "mail", "t"): 2}
    assert found.times["t"].buckets[7200] == 0
    assert found.times["t"].buckets[float("inf")] == 2


def test_while_the_server_is_away_counts_are_kept(bench):
    counts = RunCounts()
    counts.note("mail", "t", None, 1)
    away = Database(redis.Redis(port=free_port(), retry=None), Config())
    with pytest.raises(redis.ConnectionError):
        counts.count(away)
    counts.note("mail", "t", None, 1)
    counts.count(bench.database)
    assert Runs(bench.database).counts().ends == {("succeeded", "mail", "t"): 2}


def test_rows_are_bounded_and_no_run_is_left_out(bench):
    counts = RunCounts()
    for number in range(MOST + 7):
        counts.note("mail", f"t{number}", None, 1)
    counts.note("mail", "t0", None, 1)
    counts.count(bench.database)
    ends = Runs(bench.database).counts().ends
    assert len(ends) == MOST + 1
    assert ends["succeeded", "mail", "t0"] == 2
    assert ends["succeeded", "mail", ""] == 7


def test_what_a_hand_has_written_there_is_passed_over(bench):
    bench.client.hset(bench.keys.runs, mapping={"odd": 1, "succeeded": 2, "seconds\tx": 3})
    found = Runs(bench.database).counts()
    assert (found.ends, found.times) == ({}, {})
