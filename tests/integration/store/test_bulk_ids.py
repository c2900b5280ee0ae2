"""The ids of bulk actions: bounded in number and time."""

from __future__ import annotations

import pytest

from celery_superfetch.store import bulk_ids
from celery_superfetch.store.bulk_ids import BULK_IDS_MAX, BULK_IDS_TTL_S, BulkIds


@pytest.fixture
def stored(bench) -> BulkIds:
    return BulkIds(bench.database)


def test_ids_of_an_action_come_back_in_their_order_and_go(stored, bench):
    ids = ["b", "a", "sch\u00f6n", "\x1b[2J", "half \udc80"]
    stored.store("1", ids)
    assert stored.read("1") == [*ids[:-1], "half ?"]
    assert stored.has("1")
    assert 0 < bench.client.ttl(bench.keys.bulk) <= BULK_IDS_TTL_S
    assert stored.read("2") == []
    stored.forget("1")
    assert not stored.has("1")
    assert not bench.client.exists(bench.keys.bulk)


def test_the_oldest_action_goes_and_the_memory_is_bounded(stored, bench, monkeypatch):
    ids = [f"{number:040}" for number in range(20_000)]
    for change in range(BULK_IDS_MAX + 3):
        stored.store(f"{change:013}", ids)
    assert bench.client.hlen(bench.keys.bulk) == BULK_IDS_MAX
    assert not stored.has(f"{2:013}")
    assert stored.has(f"{BULK_IDS_MAX + 2:013}")
    size = bench.client.memory_usage(bench.keys.bulk, samples=0)
    print(f"{size / 2**20:.1f} MB")
    assert size < 12 * 2**20
    monkeypatch.setattr(bulk_ids, "BULK_IDS_MAX", 10**6)
    stored.store("more", [])
    assert bench.client.hlen(bench.keys.bulk) > BULK_IDS_MAX, "the control"


@pytest.mark.parametrize("row", ["", "1", "{}", "[1, null]", "\xff"])
def test_a_row_by_hand_has_no_ids(stored, bench, row):
    bench.client.hset(bench.keys.bulk, "x", row)
    assert stored.read("x") == []
