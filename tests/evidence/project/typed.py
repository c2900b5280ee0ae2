"""A user's program, as a type checker sees it. Nobody runs it: mypy reads it (``test_types.py``).

Each ``type: ignore`` is a mistake that has to be found: one that is not is an error, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from celery import Celery
from typing_extensions import assert_type

import celery_superfetch
from celery_superfetch import (
    BadFilter,
    ConfigError,
    DeadJob,
    DeadSet,
    Decision,
    JobNotFound,
    LostJob,
    PoisonPill,
    ReapedOwner,
    Recovery,
    RedisBackend,
    Retried,
    job_killed,
    job_recovered,
    job_recovering,
    owner_reaped,
    ownership_lost,
)

app = Celery("shop", broker="redis://localhost:6379/0")
try:
    celery_superfetch.install(app, owner_ttl=120, socket_timeout=5)
except ConfigError as exc:
    assert_type(exc, ConfigError)
celery_superfetch.install(app, owner_ttl="120")  # type: ignore[arg-type]
celery_superfetch.install(app, strike_limit=None)  # type: ignore[arg-type]
celery_superfetch.install(app, strike_limt=3)  # type: ignore[call-arg]
celery_superfetch.install(app, socket_timout=5)  # type: ignore[call-arg]
assert_type(celery_superfetch.__version__, str)


class Shop(Celery):  # type: ignore[misc]
    """An app of one's own keeps its class."""


assert_type(celery_superfetch.install(Shop("shop")), Shop)


@job_recovering.connect
def decide(sender: object, recovery: Recovery, **kwargs: object) -> Decision | None:
    assert_type(recovery.task, str | None)
    assert_type(recovery.strikes, int)
    assert_type(recovery.blame.value, str)
    assert_type(recovery.job.payload, bytes)
    return Decision.KILL if recovery.strikes > 1 else None


@job_killed.connect(sender=app, weak=False)
def alert(sender: object, job: DeadJob, **kwargs: object) -> None:
    assert_type(job.died, float | None)
    assert_type(job.reason, str)


@owner_reaped.connect
def count(sender: object, reaped: ReapedOwner, **kwargs: object) -> None:
    assert_type(reaped.recovered, int)


@ownership_lost.connect
def warn(sender: object, lost: LostJob, **kwargs: object) -> None:
    assert_type(lost.task_id, str | None)


assert_type(job_recovered.disconnect(decide), bool)
job_killed.connect("alert")  # type: ignore[call-overload]

with DeadSet(app) as dead:
    assert_type(len(dead), int)
    assert_type(dead.find(task="shop.*", newer_than=3600), Iterator[DeadJob])
    assert_type(dead.page(0, 10, queue="mail"), list[DeadJob])
    assert_type(dead.retry_all(reason="lost"), list[Retried])
    assert_type(dead.purge(), int)
    dead.find(tusk="shop.*")  # type: ignore[call-arg]
    dead.find(newer_than="1h")  # type: ignore[arg-type]
    try:
        assert_type(dead.retry("3f9a", to="mail").queue, str | None)
    except (JobNotFound, BadFilter) as exc:
        print(exc)

try:
    app.AsyncResult("3f9a").get()
except PoisonPill as pill:
    assert_type(pill.strikes, int)
    assert_type(pill.times, tuple[datetime | None, ...])
    assert_type(pill.hosts, tuple[str, ...])


assert_type(RedisBackend(app=app), RedisBackend)
