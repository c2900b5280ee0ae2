"""How workers share the wait for the lists that all of them serve."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_superfetch.model.owner_rank import MOST_READS, READERS_PER_LIST, OwnerRank

LISTS = [f"list-{n}" for n in range(20)]


def readers(owners: int, lists: list[str]) -> Counter[str]:
    """List -> how many of the owners block on it."""
    places = [OwnerRank(rank, owners, owners) for rank in range(owners)]
    reads = places[0].read_count(len(lists))
    return Counter(name for place in places for name in place.share(lists, reads))


@pytest.mark.parametrize("owners", [5, 6, 7, 19, 20, 21, 50, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 20])
def test_together_all_owners_block_on_all_lists_evenly(owners, count):
    lists = LISTS[:count]
    found = readers(owners, lists)
    assert set(found) == set(lists)
    assert max(found.values()) - min(found.values()) <= MOST_READS


@pytest.mark.parametrize(
    ("owners", "lists", "reads"),
    [(1, 1, 4), (1, 20, 4), (20, 20, 4), (21, 20, 4), (40, 20, 2), (80, 20, 1), (5000, 20, 1)],
)
def test_the_more_owners_the_fewer_lists_each_blocks_on(owners, lists, reads):
    assert OwnerRank(0, owners, owners).read_count(lists) == reads


def test_a_list_has_its_readers_where_the_owners_are_enough():
    assert min(readers(20, LISTS).values()) >= READERS_PER_LIST


def test_no_list_is_named_twice_where_there_are_fewer_than_reads():
    assert OwnerRank(3, 4, 4).share(LISTS[:2], 4) == [LISTS[0], LISTS[1]]
    assert OwnerRank(1, 4, 4).share(LISTS[:3], 2) == [LISTS[2], LISTS[0]]


@pytest.mark.parametrize(("idle", "few"), [(0, True), (1, True), (9, True), (10, False)])
def test_few_wait_if_a_list_may_have_less_than_two_readers(idle, few):
    assert OwnerRank(0, 50, idle).are_few(20, 4) is few


def test_an_owner_that_knows_no_other_is_alone():
    assert OwnerRank() == OwnerRank(0, 1, 1)
    assert OwnerRank().are_few(4, 4)
    assert not OwnerRank().are_few(1, 4)
    assert OwnerRank(0, 0, 0).read_count(20) == 4, "of a record that another version wrote"
