"""A job that a pool may start without asking, and that the pool never comes to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_superfetch.app.reaper import reaper_of
from support.process import is_alive
from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.worker import Worker


@pytest.fixture
def no_children(tmp_path: Path) -> Path:
    """While it exists no pool process comes up."""
    return tmp_path / "no-children"


@pytest.fixture
def start(worker: Any, no_children: Path) -> Callable[..., Worker]:
    def started(pool: str = "prefork") -> Worker:
        one: Worker = worker(
            app="features",
            pool=pool,
            concurrency=1,
            conf={"worker_proc_alive_timeout": 60},
            env={"HAPPENS": "slow_children", "NO_CHILDREN": str(no_children)},
            options={"reap_interval": 600},
        )
        return one

    return started


@pytest.fixture
def behind_early(
    start: Callable[..., Worker], app: Celery, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> Worker:
    """A worker whose only thread runs a job with early ack, before one with late ack."""
    one = start("threads")
    app.send_task("features.early_hold", ("early",))
    eventually(lambda: ledger.starts().get("early"))
    shop.note.delay("late")
    eventually(lambda: [*db.held().values()] == [["late"]])
    return one


@pytest.mark.parametrize("written", [False, True])
def test_a_job_that_a_lost_connection_makes_the_pool_forget_is_given_back(
    start, shop, ledger, db, no_children, written
):
    """It waits for a child to come up; or is in the pipe of one that has died."""
    one = start()
    shop.note.delay("first")
    eventually(lambda: ledger.finishes().get("first") and not db.held())
    [child] = one.children()
    no_children.touch()
    if not written:
        child.kill()
        eventually(lambda: not is_alive(child))
    else:
        child.suspend()
    shop.note.delay("job")
    # Without a child the pool may have no slot for it yet, if its worker has seen the death first.
    seen = db.running if written else lambda: [job for jobs in db.held().values() for job in jobs]
    eventually(lambda: seen() == ["job"], message="it is claimed, or recorded as running")
    if written:
        child.kill()
        eventually(lambda: not is_alive(child))
    kill_connections(db.client)
    one.wait_log("Connection to broker lost")
    no_children.unlink()
    eventually(lambda: ledger.finishes().get("job"))
    eventually(db.settled)
    assert ledger.runs() == {"first": 1, "job": 1}


@pytest.mark.parametrize("end", ["connection", "term"])
def test_a_job_behind_one_with_early_ack_is_given_back(behind_early, ledger, db, end):
    """What was acked before it runs has the slot all the same."""
    assert not db.running()
    if end == "term":
        behind_early.term()
        eventually(lambda: db.waiting() == ["late"])
        ledger.release()
        behind_early.wait_exit()
        assert db.waiting() == ["late"]
        return
    kill_connections(db.client)
    behind_early.wait_log("Connection to broker lost")
    ledger.release()
    eventually(lambda: ledger.finishes().get("late"))
    eventually(lambda: not db.held())
    assert ledger.runs()["late"] == 1


def test_a_job_behind_one_with_early_ack_is_not_blamed_for_it(behind_early, app, db):
    behind_early.kill9_all()
    eventually(lambda: reaper_of(app, db.client).reap().dead)
    assert db.strikes() == {"late": (0, "")}
