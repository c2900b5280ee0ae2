"""The rounds of a worker's maintenance, in its own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf
from time import monotonic

import pytest
import redis
from celery import Celery
from redis.connection import parse_url

import celery_superfetch
from celery_superfetch.app.broker import config_of
from celery_superfetch.owner.owner import Owner
from celery_superfetch.store.database import Database
from celery_superfetch.worker import maintenance
from celery_superfetch.worker.maintenance import MaintenanceThread, OwnerMaintenance
from celery_superfetch.worker.run_counts import RunCounts
from support.driver import Driver
from support.waiting import eventually
from support.workers.bench import Bench, payload


@pytest.fixture
def beside(client: redis.Redis, url: str) -> Iterator[tuple[Celery, Owner]]:
    """An app, and a consumer of its options that runs beside its worker, in a task or in a step."""
    app = celery_superfetch.install(Celery("shop", broker=url, set_as_current=False))
    membership = Owner(parse_url(url), config_of(app))
    membership.join(1, {"mail": 0})
    yield app, membership
    membership.leave_for_good()


def test_a_consumer_beside_the_worker_is_served_like_any_owner(beside, client):
    """It has no pool, so nothing is told of its runs."""
    app, membership = beside
    bench = Bench(client)
    bench.push("mail", payload("1"))
    [lease] = membership.claim(["mail"], 1, 1).leases
    Driver.of(membership).reserve(lease.job)
    dead = bench.dead_owner([payload("2", "other")], queue="other")
    OwnerMaintenance(app, membership).tick(monotonic())
    assert not bench.registry.owners().get(dead.owner), "it was reaped"
    assert [*Driver.of(membership)] == [lease.job]


def test_what_a_full_server_does_not_count_keeps_no_job_waiting(fresh_server):
    server = fresh_server()
    app = celery_superfetch.install(Celery("shop", broker=server.url(), set_as_current=False))
    owner = Owner(parse_url(server.url()), config_of(app))
    owner.join(1, {"mail": 0})
    counts = owner.executor.run_counts = RunCounts()
    counts.count_run("mail", "shop.note", None, 0.1)
    bench = Bench(server.client())
    dead = bench.dead_owner([payload("1", "other")], queue="other")
    server.client().config_set("maxmemory", "1mb")
    OwnerMaintenance(app, owner).tick(monotonic())
    assert dead.owner not in bench.registry.owners()
    server.client().config_set("maxmemory", "0")
    owner.leave_for_good()


def test_of_those_who_see_a_death_in_one_second_one_makes_a_pass(beside, client):
    """The control is a turn that nobody has taken."""
    app, membership = beside
    bench, rounds = Bench(client), OwnerMaintenance(app, membership)
    dead = bench.dead_owner([payload("1")])
    assert bench.database.try_lock("host", 60)
    assert not bench.database.try_lock("host", 60)
    assert 0 < client.pttl(bench.keys.lock("host")) <= 60_000, "it expires by itself"
    rounds._reap([dead.owner], "host")
    assert dead.owner in bench.registry.owners()
    rounds._reap([dead.owner], "remote")
    rounds._continue_passes(inf)
    assert dead.owner not in bench.registry.owners()
    assert not bench.database.try_lock("remote", 60)
    eventually(lambda: bench.database.try_lock("remote", 60), 5)


@pytest.mark.parametrize("asks", [True, False], ids=["it asks", "control: it asks nothing"])
def test_an_outage_has_an_end_when_the_server_answers(asks, fresh_server, monkeypatch, caplog):
    """Between two passes a round asks the server nothing, and raises nothing."""
    server = fresh_server(appendonly=True)
    options = {"heartbeat_interval": 600, "owner_ttl": 3600, "reap_interval": 0.2}
    app = celery_superfetch.install(
        Celery("shop", broker=server.url(), set_as_current=False), **options
    )
    owner = Owner(parse_url(server.url()), config_of(app))
    owner.join(1, {"mail": 0})
    monkeypatch.setattr(maintenance, "HOST_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(maintenance, "owners_of_process", lambda: [owner])
    caplog.set_level(logging.DEBUG, maintenance.logger.name)
    if not asks:
        monkeypatch.setattr(Database, "server_time", lambda database: 0)

    def lines(text: str, level: int = logging.DEBUG) -> int:
        logged = [one for one in caplog.records if one.levelno >= level]
        return sum(text in one.getMessage() for one in logged)

    thread = MaintenanceThread(app)
    server.stop()
    thread.start()
    if asks:
        eventually(lambda: lines("cannot reach Redis") >= 20, message="it tries again and again")
        assert lines("cannot reach Redis", logging.WARNING) == 1
        assert not lines("Maintenance works again")
        server.start()
        eventually(lambda: lines("Maintenance works again") == 1)
    else:
        eventually(
            lambda: lines("Maintenance works again") >= 5, message="while the server is away"
        )
        assert lines("cannot reach Redis", logging.WARNING) >= 5
        server.start()
    thread.over.set()
    thread.join(10)
    owner.leave_for_good()
