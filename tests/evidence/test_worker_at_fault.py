"""What a worker cannot begin is not the job's fault: the worker ends, and the job waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_superfetch import PoisonPill
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually

POOLS = ("prefork", "threads", "solo", "gevent")


@pytest.fixture
def innocent(db: Database, ledger: Ledger, worker: Any) -> Callable[[list[str]], None]:
    """`innocent(jobs)`: what has not run waits on its queue, unstruck, and runs elsewhere; each
    once."""

    def look(jobs: list[str]) -> None:
        ran = ledger.runs()
        assert set(ran.values()) <= {1}
        assert sorted([*ran, *db.waiting()]) == sorted(jobs), "each has run or waits"
        assert not db.dead()
        assert not db.held()
        assert not any(int(counters.get("strikes", 0)) for counters in db.counters())
        worker(concurrency=4)
        eventually(lambda: ledger.runs() == dict.fromkeys(jobs, 1))
        assert not db.dead()

    return look


def sent(app: Celery, count: int, seconds: float = 0.0) -> list[str]:
    """Send jobs, each of which runs for some seconds; return their names."""
    jobs = [f"n{number}" for number in range(count)]
    for job in jobs:
        app.send_task("shop.hold", (job, seconds))
    return jobs


@pytest.mark.parametrize("threads", [0, 2])
def test_a_worker_short_of_threads_ends_and_its_jobs_wait(worker, app, innocent, threads):
    """A1. 1,200 jobs: none ran, 1,000 were in the dead set, 200 gone. With two threads 30 ran, and
    28 of them were dead as well: the executor has a job in its line when it fails to start one."""
    short = worker(pool="threads", concurrency=30, env=few_threads(threads))
    jobs = sent(app, 200)
    assert short.wait_exit() != 0
    assert "can't start new thread" in short.log()
    innocent(jobs)


def test_else_its_jobs_are_killed(worker, app, db, ledger):
    """A1, the control."""
    env = {**few_threads(2), "WITHOUT": "reading"}
    worker(pool="threads", concurrency=30, env=env)
    sent(app, 200, 0.1)  # so that they need more threads than there are
    eventually(lambda: len(db.dead()) > 10)


def few_threads(most: int) -> dict[str, str]:
    return {"HAPPENS": "few_threads", "THREADS": str(most)}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("what", ["broken_requests", "broken_handover"])
def test_a_request_class_that_fails_ends_its_worker_and_its_jobs_wait(
    worker, app, innocent, pool, what
):
    """A1. Of 1,500 jobs 500 were lost, and 1,000 among the unparseable items."""
    broken = worker(pool=pool, env={"HAPPENS": what})
    jobs = sent(app, 100)
    assert broken.wait_exit() != 0
    assert "KeyError('tenant')" in broken.log()
    innocent(jobs)


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_whose_requests_start_by_another_method_ends_before_the_first(
    worker, app, db, innocent, pool
):
    """Its jobs would start unrecorded, and however late."""
    jobs = sent(app, 20)
    broken = worker(pool=pool, env={"HAPPENS": "another_start"}, ready=False)
    assert broken.wait_exit() != 0
    assert "has replaced Request.execute_using_pool" in broken.log()
    assert "(by Request.execute_using_pool, in celery.worker.request)" in broken.log()
    assert sorted(db.waiting()) == sorted(jobs)
    innocent(jobs)


@pytest.mark.parametrize("pool", POOLS)
def test_it_ends_as_well_where_a_timer_would_swallow_that(worker, app, innocent, pool):
    """A1. The job would stay in flight for as long as the worker lives."""
    broken = worker(pool=pool, env={"HAPPENS": "broken_handover"})
    app.send_task("shop.note", ("later",), countdown=0.5)
    assert broken.wait_exit() != 0
    innocent(["later"])


def test_if_it_ends_worker_after_worker_it_is_killed_in_the_end(worker, app, db, client):
    """A1. After `recovery_limit` ends it has a worker for itself; what ends then is its doing."""
    options = {"recovery_limit": 2, "strike_limit": 2}
    result = app.send_task("shop.note", ("a",))
    ends = 0
    while not db.dead():
        one = worker(pool="threads", options=options, env={"HAPPENS": "broken_requests"})
        eventually(lambda one=one: not one.alive() or db.dead())
        ends += 1
        assert ends <= 4
    assert ends == 4, "two without a strike, two strikes"
    [dead] = db.dead()
    assert dead["task"] == "shop.note"
    assert dead["reason"].startswith("its worker failed to start it: KeyError (")
    assert not client.exists("superfetch:dead:junk")
    worker()  # whoever lives tells its caller
    with pytest.raises(PoisonPill, match="KeyError"):
        result.get(timeout=20)


@pytest.mark.parametrize("superfetch", [True, False], ids=["here", "stock"])
def test_a_job_whose_task_its_process_does_not_know_fails_aloud(worker, app, superfetch):
    """It was acked without a result, and nothing was logged. So it was in processes that are
    spawned (`worker_pool_start_method`) and import less than their worker."""
    result = app.send_task("shop.note", ("a",))
    one = worker(superfetch=superfetch, env={"HAPPENS": "forgetful_processes"})
    with pytest.raises(Exception, match=r"shop\.note"):
        result.get(timeout=20)
    assert result.state == "FAILURE"
    one.wait_log("NotRegistered")
