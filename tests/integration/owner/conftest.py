"""This process as an owner: its membership, or its record alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.connection import parse_url

from celery_superfetch.model.config import Config
from celery_superfetch.model.dead_job import DeadJob
from celery_superfetch.model.job import Job
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.strikes import Limits
from celery_superfetch.owner.owner import Owner
from celery_superfetch.store.database import Database
from support.driver import Driver
from support.servers.faulty import Faults
from support.workers.bench import Bench


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., Owner]]:
    """`make(server.url(), heartbeat_interval=..., params={...})`: this process as an owner."""
    made: list[Owner] = []

    def start(at: str = url, params: dict[str, Any] | None = None, **options: Any) -> Owner:
        config = Config(**{"app_name": "shop", **options})
        made.append(Owner({**parse_url(at), **(params or {})}, config))
        return made[-1]

    yield start
    for membership in made:
        membership.leave_for_good()


@pytest.fixture
def member(make: Callable[..., Owner]) -> Owner:
    """Registered for the queue mail, for one channel (1)."""
    membership = make()
    membership.join(1, {"mail": 0})
    return membership


@pytest.fixture
def owner(bench: Bench, owner: OwnerRecord) -> OwnerRecord:
    """And heard just now."""
    bench.driver.heartbeat_confirmed(owner.owner)
    return owner


@pytest.fixture
def lose(bench: Bench) -> Callable[..., DeadJob | None]:
    """`lose(job)`: its pool child is lost; the dead job, if that is its end."""
    limits = Limits.of(bench.config)

    def recover_or_kill(job: Job, sender: str = "nobody's", **how: Any) -> DeadJob | None:
        return bench.driver.recover_or_kill(job, "pool child lost", sender, limits, **how)

    return recover_or_kill


@pytest.fixture
def faults(client: redis.Redis) -> Faults:
    """Connections on which one fault happens."""
    return Faults(client)


@pytest.fixture
def driver(bench: Bench, faults: Faults) -> Driver:
    """The jobs in flight of a process that has these connections."""
    database = Database(faults.client, bench.config)
    database.is_registered = bench.database.is_registered
    return Driver.over(database)
