"""celery-once and celery-singleton lock at the publish: a job that is recovered has its lock still,
and releases it."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from celery_superfetch import PoisonPill
from support.servers.ledger import Ledger
from support.waiting import always, eventually

pytest.importorskip("celery_once", reason="celery-once is not installed")
pytest.importorskip("celery_singleton", reason="celery-singleton is not installed")

from celery_once import AlreadyQueued

from support.apps.unique_tasks import define

KINDS = ("once", "singleton")
OPTIONS = {"reap_interval": 1}


@pytest.fixture
def tasks(app: Celery, ledger: Ledger) -> Any:
    define(app, ledger.url)
    return {name: app.tasks[f"unique.{name}"] for kind in KINDS for name in _names(kind)}


def _names(kind: str) -> tuple[str, str]:
    return f"{kind}.hold", f"{kind}.kill"


def locks(ledger: Ledger) -> dict[str, int]:
    """Locks of both packages, with the seconds that each has left; -1 for one without an end."""
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        names = [*client.keys("qo_*"), *client.keys("SINGLETONLOCK_*")]
        return {name: client.ttl(name) for name in names}


@pytest.mark.parametrize("superfetch", [True, False], ids=["ours", "stock"])
def test_a_killed_workers_job_runs_again_and_releases_its_lock(worker, tasks, ledger, superfetch):
    """The control: on stock no job runs, and both locks keep the next call away."""
    first = worker(app="unique", superfetch=superfetch, options=OPTIONS)
    for kind in KINDS:
        tasks[f"{kind}.hold"].delay(kind)
    eventually(lambda: ledger.starts().keys() == {*KINDS})
    first.die()
    ledger.release()
    worker(app="unique", superfetch=superfetch, options=OPTIONS)
    if not superfetch:
        always(lambda: len(locks(ledger)) == 2, during=5)
        assert ledger.runs() == dict.fromkeys(KINDS, 1)
        with pytest.raises(AlreadyQueued):
            tasks["once.hold"].delay("once")
        return
    eventually(lambda: not locks(ledger))
    assert ledger.runs() == dict.fromkeys(KINDS, 2)
    assert {job: len(times) for job, times in ledger.finishes().items()} == dict.fromkeys(KINDS, 1)


def test_the_lock_of_a_dead_lettered_job_stays(worker, tasks, ledger):
    worker(app="unique", options=OPTIONS)
    sent = {kind: tasks[f"{kind}.kill"].delay("pill") for kind in KINDS}
    for result in sent.values():
        with pytest.raises(PoisonPill):
            result.get(timeout=30)
    left = locks(ledger)
    [once] = [ttl for name, ttl in left.items() if name.startswith("qo_")]
    [singleton] = [ttl for name, ttl in left.items() if name.startswith("SINGLETONLOCK_")]
    assert once > 0, "until default_timeout"
    assert singleton == -1, "without lock_expiry: for ever"
    with pytest.raises(AlreadyQueued):
        tasks["once.kill"].delay("pill")
    assert tasks["singleton.kill"].delay("pill").id == sent["singleton"].id
