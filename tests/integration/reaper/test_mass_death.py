"""C7. Hundreds die at once, or start at once: nobody looks at everybody one by one."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery

from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.owner.owner import Owner
from celery_superfetch.worker.bootsteps import _first_pass
from celery_superfetch.worker.maintenance import PEERS_CHECKED, OwnerMaintenance
from support.servers.work import noted
from support.workers.bench import Bench, elsewhere, payload


def test_a_heartbeat_tells_of_all_who_are_silent(bench):
    """Of 1,000 with the same 128 first, the last would be watched only after eight minutes."""
    silent = {bench.owner(elsewhere(f"gone-{n}")).owner for n in range(1000)}
    mine = bench.owner()
    first = bench.registry.heartbeat(mine, 0, {})
    assert set(bench.registry.heartbeat(mine, first.now, {}).quiet) - {mine.owner} == silent


LISTS = [f"list-{n}" for n in range(40)]


def test_a_tombstone_costs_four_commands(own):
    bench = Bench(own)
    owners = [bench.dead_owner(lists=LISTS) for _ in range(20)]
    reaper = bench.reaper()
    assert len(reaper.reap().dead) == len(owners)
    bench.give(owners[7].owner, LISTS[11], [payload("late")])
    with noted(own) as work:
        report = reaper.reap()
    assert (report.recovered, bench.queue(LISTS[11])) == (1, [payload("late")])
    # Its record, what is claimed, its lists, and whether something landed; and more for the one
    # that has a job.
    assert len(work.commands) <= 4 * len(owners) + 60, work.commands


def test_who_died_with_many_empty_lists_is_reaped_in_a_few_round_trips(own):
    bench = Bench(own)
    owner = bench.dead_owner(lists=LISTS)
    bench.give(owner.owner, LISTS[11], [payload("job")])
    with noted(own) as work:
        assert bench.reaper().reap().recovered == 1
    scripts = [command for command in work.commands if command.name == "evalsha"]
    assert len(scripts) <= len(LISTS) / 2, "no script for a list without a job"


def rounds_of(
    mine: OwnerRecord, everybody: Collection[OwnerRecord]
) -> tuple[OwnerMaintenance, list[str]]:
    """What one worker looks at, and whose records it reads for that."""
    known = {record.owner: record for record in everybody}
    read: list[str] = []

    def records(names: Collection[str]) -> dict[str, OwnerRecord]:
        read.extend(names)
        return {name: known[name] for name in names}

    rounds = cast("Any", OwnerMaintenance.__new__(OwnerMaintenance))
    others = tuple(name for name in known if name != mine.owner)
    rounds.owner = SimpleNamespace(name=mine.owner, record=mine, host_peers=others)
    rounds.reaper = SimpleNamespace(registry=SimpleNamespace(records=records))
    rounds._records = {}
    return rounds, read


def neighbours(bench: Bench, count: int, grounds: int) -> list[OwnerRecord]:
    """Owners under one host name, some of them in containers of their own."""
    here = ProcessImage.current()
    images = [
        replace(here, pid=number + 1, pid_namespace=f"namespace-{number % grounds}")
        if number % grounds
        else replace(here, pid=number + 1)
        for number in range(count)
    ]
    return [bench.owner(image, register=False) for image in images]


@pytest.mark.parametrize("grounds", [1, 3])
def test_each_worker_of_a_host_looks_at_a_few_and_every_death_is_seen(bench, grounds, monkeypatch):
    everybody = neighbours(bench, 200, grounds)
    chance = random.Random(1)
    # To each of them its own ground is "here".
    watched: dict[str, set[str]] = {}
    for mine in everybody:
        monkeypatch.setattr(ProcessImage, "current", lambda mine=mine: mine.process)
        rounds, read = rounds_of(mine, everybody)
        found = {record.owner for record in rounds._peers_checked()}
        assert len(found) == PEERS_CHECKED
        assert len(read) <= 2 * PEERS_CHECKED * grounds + PEERS_CHECKED
        read.clear()
        assert {record.owner for record in rounds._peers_checked()} == found
        assert read == [], "it knows their faces"
        watched[mine.owner] = found
    for number in range(100):
        first = chance.randrange(200)
        some = [*everybody[first:], *everybody[:first]] if number % 2 else [*everybody]
        if not number % 2:
            chance.shuffle(some)
        dead = {record.owner for record in some[: chance.randrange(1, 195)]}
        for ground in {record.process.pid_namespace for record in everybody}:
            there = {f.owner for f in everybody if f.process.pid_namespace == ground}
            if there & dead and there - dead:
                assert any(watched[owner] & dead for owner in there - dead)


def test_the_pass_at_a_workers_start_reads_of_its_own_host_alone(own):
    """A thousand of them would read a million records."""
    bench = Bench(own)
    gone = bench.dead_owner([payload(1)])
    for number in range(50):
        bench.owner(elsewhere(f"host-{number}"))
    app = Celery("shop", broker="redis://localhost:6399", set_as_current=False)
    app.conf.broker_transport_options = {"app_name": "shop"}
    membership = Owner(own.connection_pool.connection_kwargs, bench.config)
    membership.join(1, {"mail": 0})
    with noted(own) as work:
        _first_pass(app, membership)
    membership.leave(1)
    assert gone.owner not in bench.registry.owners()
    assert bench.queue() == [payload(1)]
    read = [c for c in work.commands if c.name == "hgetall" and b":owner:" in c.arguments[0]]
    assert len(read) <= 4
