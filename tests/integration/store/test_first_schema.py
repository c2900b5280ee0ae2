"""Data of schema 1: who meets it says so, and drains it."""

from __future__ import annotations

from celery_superfetch.cli.to_stock import Drain
from celery_superfetch.model.facts import Facts
from support.workers.bench import Bench, payload
from support.workers.orphans import reaped

RAWS = [payload(n) for n in range(120)]


def first(bench: Bench, owner: Facts) -> Facts:
    """Have an owner be one of an earlier version, with a list of jobs and one that waits."""
    bench.client.hset(bench.keys.facts(owner.owner), "schema", "1")
    private, held, _ = bench.keys.first_schema(owner.owner, "mail")
    bench.client.lpush(private, *RAWS)
    bench.client.hset(held, "77", payload("later"))
    return owner


def test_what_a_dead_one_held_is_back_in_its_old_order(bench, caplog):
    owner = first(bench, bench.dead_owner())
    report = bench.reaper().reap()
    assert report.recovered == len(RAWS) + 1
    assert bench.queue() == [payload("later"), *RAWS]
    assert not bench.client.exists(*bench.keys.first_schema(owner.owner, "mail")[:2])
    assert f"121 jobs of {owner.owner} were kept in an earlier form (schema 1)" in caplog.text


def test_a_tombstone_that_was_left_half_drained_is_drained_again(bench):
    first(bench, reaped(bench))
    assert bench.reaper().reap().recovered == len(RAWS) + 1
    assert len(bench.queue()) == len(RAWS) + 1


def test_one_that_lives_is_told_of_and_left_alone(bench, caplog):
    owner = first(bench, bench.owner(node="old@here"))
    assert bench.reaper().reap().recovered == 0
    assert bench.queue() == []
    assert "Worker old@here runs an earlier version" in caplog.text
    assert bench.client.llen(bench.keys.first_schema(owner.owner, "mail")[0]) == len(RAWS)


def test_an_operator_drains_it_too(bench):
    first(bench, bench.dead_owner())
    done = Drain(bench.reaper()).run()
    assert (done.given_back, done.errors) == (len(RAWS) + 1, 0)
    assert bench.queue() == [payload("later"), *RAWS]
