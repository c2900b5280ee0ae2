"""Series of the charts: each event in the right slot, once; their bounds in rows and bytes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import redis

from celery_superfetch.console.charts import charts_of
from celery_superfetch.inspector import Inspector
from celery_superfetch.model.config import Config
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.database import Database
from celery_superfetch.store.minutes import (
    COUNTED,
    ONE_MINUTE,
    SLOTS,
    TEN_MINUTES,
    WAITING_JOBS,
    Minutes,
    Row,
    Series,
)
from celery_superfetch.store.redis import scripts
from celery_superfetch.store.runs import RunReport, Runs
from celery_superfetch.store.stats import WAITING_PER_SCRIPT, Stats
from celery_superfetch.worker.run_counts import RunCounts
from support.servers.proxy import FaultProxy
from support.workers.bench import Bench, payload

DAY_MS = 86_400_000

#: Bytes of a row at most, with its index: a count of three digits in each of its slots.
ROW_MAX_BYTES = 1600


def counted(bench: Bench, event: str, queue_list: str = "", step: int = ONE_MINUTE) -> int:
    """The sum of a row over its whole window."""
    now = bench.database.server_time() // (step * 60_000)
    row = Row(event, queue_list)
    window = Minutes(bench.database).series(step, [row])[row].window(now - SLOTS[step], now)
    return sum(count or 0 for count in window)


def succeed(counts: RunCounts, queue_list: str, number: int = 1) -> None:
    for _ in range(number):
        counts.count_run(queue_list, "shop.note", None, 0.1)


def test_ended_runs_are_counted_once_in_both_series_and_by_queue_list(bench):
    counts = RunCounts()
    succeed(counts, "mail", 3)
    succeed(counts, "slow", 2)
    counts.count_run("mail", "shop.note", ValueError(), 0.1)
    counts.count(bench.database)
    counts.count(bench.database)
    for step in SLOTS:
        assert counted(bench, "succeeded", step=step) == 5
        assert counted(bench, "succeeded", "mail", step) == 3
        assert counted(bench, "succeeded", "slow", step) == 2
        assert counted(bench, "failed", "mail", step) == 1
        assert counted(bench, "failed", "slow", step) == 0


def test_the_packages_own_tasks_are_no_work_of_the_app(bench):
    counts = RunCounts()
    counts.count_run("mail", "celery_superfetch.reap", None, 0.1)
    counts.count(bench.database)
    assert counted(bench, "succeeded") == 0
    assert Runs(bench.database).counts().ends


def test_recovered_and_dead_lettered_jobs_are_counted_by_the_scripts_that_move_them(bench):
    bench.dead_owner([payload("1"), payload("2"), payload("3")])
    bench.reaper().reap()
    bench.killed(payload("4"), payload("5"), queue="slow")
    assert counted(bench, "recovered") == counted(bench, "recovered", "mail") == 3
    assert counted(bench, "killed") == counted(bench, "killed", "slow") == 2
    assert counted(bench, "killed", "mail") == 0


def test_waiting_jobs_are_the_most_that_a_pass_saw_in_a_slot(bench):
    stats = Stats(bench.database)
    for waiting in ({"mail": 7, "slow": 1}, {"mail": 2}, {}):
        stats.record_pass({"by": "a test"}, waiting)
    now = bench.database.server_time() // 60_000
    rows = [Row(WAITING_JOBS), Row(WAITING_JOBS, "mail"), Row(WAITING_JOBS, "slow")]
    found = Minutes(bench.database).series(ONE_MINUTE, rows)
    most = [max(count or 0 for count in found[row].window(now - 1, now)) for row in rows]
    assert most == [8, 7, 1]


def test_a_pass_counts_the_waiting_jobs_of_any_number_of_lists(bench):
    waiting = {f"queue-{number}": number + 1 for number in range(2 * WAITING_PER_SCRIPT + 1)}
    Stats(bench.database).record_pass({"by": "a test"}, waiting)
    assert counted(bench, WAITING_JOBS) == sum(waiting.values())
    assert all(counted(bench, WAITING_JOBS, name) == size for name, size in waiting.items())


@pytest.fixture
def with_count(bench: Bench) -> Any:
    """The function of that name in shared.lua."""
    shared = (scripts.LUA / "shared.lua").read_text()
    call = "return with_count(ARGV[1], tonumber(ARGV[2]), 5, tonumber(ARGV[3]), ARGV[4] == '1')"

    def run(series: bytes, slot: int, count: int, is_most: bool) -> bytes:
        found: Any = bench.client.eval(shared + call, 0, series, slot, count, int(is_most))
        return bytes(found)

    return run


@pytest.mark.parametrize("is_most", [False, True])
def test_a_series_holds_what_was_counted_in_its_latest_slots(with_count, is_most):
    """Against a dict of all slots."""
    choose, slot = random.Random(7), 1000
    series, known = b"", Counter[int]()
    for _ in range(300):
        slot += choose.choice((0, 0, 0, 1, 1, 2, 4, 5, 9))
        count = choose.randrange(5)
        series = with_count(series, slot, count, is_most)
        known[slot] = max(known[slot], count) if is_most else known[slot] + count
        found = Series.read(series)
        assert len(found.counts) <= 5
        window = found.window(slot - 4, slot)
        assert [count or 0 for count in window] == [known[at] for at in range(slot - 4, slot + 1)]
        assert None not in [count for at, count in enumerate(window, slot - 4) if at in known]
        assert found.window(slot + 1, slot + 1) == found.window(slot - 5, slot - 5) == [None]


def test_a_clock_that_was_set_back_begins_a_series_anew_only_where_it_was_far_wrong(with_count):
    series = with_count(b"", 1000, 3, False)
    assert Series.read(with_count(series, 998, 2, False)) == Series(1000, [5])
    assert Series.read(with_count(series, 900, 2, False)) == Series(900, [2])


@pytest.mark.parametrize(
    "odd", [b"x", b"7", b"7 ,x", b"7 1,2", b" ,", b"1e9 ,1", b"-5 ,1", b"7 ,-1"]
)
def test_a_series_by_a_hand_is_begun_anew(with_count, odd):
    assert Series.read(with_count(odd, 1000, 3, False)) == Series(1000, [3])
    assert Series.read(odd).window(7, 7) in ([None], [0], [-1])


def lose_the_reply(bench: Bench, proxy: FaultProxy, counts: RunCounts) -> None:
    """Add counts over a connection that breaks once the server has added them."""
    away = Database(redis.Redis(port=proxy.port, retry=None), Config())
    sent = proxy.cut_at(
        lambda words: words[0].startswith(b"EVAL") and b"runs:reports" in b" ".join(words),
        reply_lost=True,
    )
    with pytest.raises(redis.ConnectionError):
        counts.count(away)
    assert sent.wait(5)
    assert counted(bench, "succeeded") == 2, "the server has them"


def test_a_report_whose_reply_was_lost_counts_once(bench, proxy):
    counts = RunCounts()
    succeed(counts, "mail", 2)
    Runs(bench.database).add(RunReport("another", 0, []))  # the server knows the script
    lose_the_reply(bench, proxy, counts)
    succeed(counts, "mail")
    counts.count(bench.database)
    assert counted(bench, "succeeded") == 3
    assert Runs(bench.database).counts().ends == {("succeeded", "mail", "shop.note"): 3}


def test_control_without_the_numbers_of_reports_it_counts_twice(bench, proxy, monkeypatch):
    real, check = scripts.source, "if redis.call('ZSCORE', reports, report(number)) then return end"
    assert check in real("count_runs")
    monkeypatch.setattr(scripts, "source", lambda name: real(name).replace(check, ""))
    counts = RunCounts()
    succeed(counts, "mail", 2)
    Runs(bench.database).add(RunReport("another", 0, []))
    lose_the_reply(bench, proxy, counts)
    succeed(counts, "mail")
    counts.count(bench.database)
    assert counted(bench, "succeeded") == 5


def test_the_server_knows_one_report_of_each_worker(bench):
    for _ in range(3):
        counts = RunCounts()
        for _ in range(4):
            succeed(counts, "mail")
            counts.count(bench.database)
    assert bench.client.zcard(bench.keys.reports) == 3
    assert 0 < bench.client.pttl(bench.keys.reports) <= DAY_MS
    assert counted(bench, "succeeded") == 12


def test_keys_expire_a_day_after_the_last_count(bench):
    counts = RunCounts()
    succeed(counts, "mail")
    counts.count(bench.database)
    for key in (bench.keys.minutes, bench.keys.minute_rows):
        assert 0 < bench.client.pttl(key) <= DAY_MS + 600_000


def test_a_row_that_has_not_grown_for_a_day_goes_with_a_pass(bench):
    counts = RunCounts()
    succeed(counts, "old")
    succeed(counts, "new")
    counts.count(bench.database)
    row = Row("succeeded", "old").name
    bench.client.zincrby(bench.keys.minute_rows, -DAY_MS - 700_000, row)
    Stats(bench.database).record_pass({"by": "a test"}, {})
    assert {row.queue_list for row in Minutes(bench.database).rows(100)} == {"new"}
    assert not [name for name in bench.client.hkeys(bench.keys.minutes) if b"old" in name]


def test_2000_queues_have_bounded_rows_and_bytes_and_no_event_is_left_out(bench):
    """Of three events of each, two find room for rows of their own."""
    runs, names = Runs(bench.database), [f"queue-{number:04}" for number in range(2000)]
    number = 0
    for how in ("succeeded", "failed", "retried"):
        for at in range(0, len(names), 250):
            growths = [((how, name, "shop.note"), 400) for name in names[at : at + 250]]
            runs.add(RunReport("a worker", number, growths))
            number += 1
    fill(bench)
    keys = bench.keys
    assert bench.client.hlen(keys.minutes) <= 2 * (4000 + len(COUNTED) + 1)
    sizes = [bench.client.memory_usage(key, samples=0) for key in (keys.minutes, keys.minute_rows)]
    assert sum(size or 0 for size in sizes) < 4010 * ROW_MAX_BYTES
    for how in ("succeeded", "failed", "retried"):
        assert counted(bench, how) == 2000 * 400
    assert counted(bench, "succeeded", "queue-1999") == 400
    assert counted(bench, "retried", "queue-1999") == 0, "beyond the bound"


@pytest.mark.parametrize("queues", [1, 20])
def test_the_bytes_of_a_busy_day(bench, queues):
    counts = RunCounts()
    for number in range(queues):
        succeed(counts, f"queue-{number}")
        counts.count_run(f"queue-{number}", "shop.note", ValueError(), 0.1)
    counts.count(bench.database)
    fill(bench)
    sizes = [bench.client.memory_usage(key) for key in (bench.keys.minutes, bench.keys.minute_rows)]
    assert sum(size or 0 for size in sizes) < (2 * queues + 2) * ROW_MAX_BYTES


def fill(bench: Bench) -> None:
    """Give each series a count in each of the slots before its latest one."""
    for name, text in bench.client.hgetall(bench.keys.minutes).items():
        last, _, counts = text.partition(b" ,")
        size = SLOTS[ONE_MINUTE if name.startswith(b"1\t") else TEN_MINUTES]
        # Two slots have counts where the minute changed meanwhile.
        full = last + b" " + b",0" * (size - counts.count(b",")) + b"," + counts
        bench.client.hset(bench.keys.minutes, name, full.replace(b",0", b",000"))


def test_a_document_names_the_busiest_queues_and_adds_up_priorities(bench: Bench) -> None:
    counts = RunCounts()
    for number in range(60):
        succeed(counts, f"queue-{number:02}", number + 1)
    succeed(counts, "queue-07\x06\x163", 100)
    counts.count(bench.database)
    Stats(bench.database).record_pass({"by": "a test"}, {"queue-07": 4})
    inspector = Inspector(bench.database)

    document = charts_of(inspector)
    assert [row["queue"] for row in document["queues"]][:2] == ["queue-07", "queue-59"]
    assert document["queues"][0]["sums"]["succeeded"] == 108
    assert document["queues"][0]["sums"][WAITING_JOBS] == document["sums"][WAITING_JOBS] == 4
    assert (len(document["queues"]), document["queues_left_out"]) == (50, 10)
    assert document["sums"]["succeeded"] == sum(range(1, 61)) + 100
    assert len(document["times"]) == len(document["series"]["succeeded"]) == 61

    of_queue = charts_of(inspector, 24, "queue-07")
    assert of_queue["sums"]["succeeded"] == 108
    assert len(of_queue["series"]["succeeded"]) == 145
    assert not of_queue["queues"]
    nothing = charts_of(inspector, 2, "no such queue")
    assert not any(nothing["sums"].values())
    assert len(nothing["times"]) == 13


def test_a_document_tells_unknown_from_none_waiting(bench: Bench) -> None:
    """No pass has looked in the minutes before the first one."""
    Stats(bench.database).record_pass({"by": "a test"}, {"mail": 4})
    document = charts_of(Inspector(bench.database), 1, "slow")
    waiting = [count for count in document["series"][WAITING_JOBS] if count is not None]
    assert waiting == [0]
    assert document["series"]["failed"] == [0] * 61


def test_a_document_has_the_times_of_recoveries(bench: Bench) -> None:
    idle: OwnerRecord = bench.dead_owner()
    busy = bench.dead_owner([payload("1"), payload("2")])
    for owner in (idle, busy):
        bench.age(owner, 4000)
    bench.reaper().reap()
    document = charts_of(Inspector(bench.database))
    [row] = document["recoveries"]
    assert (row["recovered"], row["killed"]) == (2, 0)
    assert 4 <= row["seconds"] < 60
    [hour] = document["recovery_hours"]
    assert hour["deaths"] == 1
    assert hour["longest"] == hour["median"] == row["seconds"]
