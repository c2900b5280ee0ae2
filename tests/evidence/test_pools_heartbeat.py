"""A task that leaves nobody else a turn: its owner goes on being heard, and goes on reaping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually

# So short that several of the owner's limits pass while a task computes.
SHORT = {"heartbeat_interval": 0.2, "owner_ttl": 0.5, "reap_interval": 0.5}


@pytest.fixture
def burn(shop: SimpleNamespace, tmp_path: Path) -> Callable[[str], Path]:
    """`burn("a")`: sends a job that computes until the file is touched."""

    def send(job: str) -> Path:
        end = tmp_path / job
        shop.note.app.send_task("features.burn", (job, str(end)))
        return end

    return send


def busy(worker: Any, ledger: Ledger, burn: Any, db: Database, **settings: Any) -> Any:
    """A worker whose one job computes; the worker, the job's end, its owner."""
    one = worker(app="features", concurrency=2, options=SHORT, **settings)
    end = burn("busy")
    eventually(lambda: ledger.starts().get("busy"))
    return one, end, db.owner_of("busy")


@pytest.mark.parametrize("pool", ["gevent", "solo", "threads"])
def test_an_owner_is_heard_while_a_task_computes(worker, burn, ledger, db, shop, pool):
    one, end, owner = busy(worker, ledger, burn, db, pool=pool)
    for _ in range(10):
        before = db.heard(owner)
        eventually(lambda before=before: db.heard(owner) > before, 5, message="heard again")
    if pool != "gevent":
        shop.hold.apply_async(("orphan",), queue="other")
        victim = worker(concurrency=1, queues=["other"])
        eventually(lambda: ledger.starts().get("orphan"))
        victim.kill9_all()
        eventually(lambda: db.waiting("other") == ["orphan"], message="it reaps")
    one.term()
    eventually(lambda: db.fact(owner, "state") == "stopping", 10, message="it says that it stops")
    assert "busy" not in ledger.finishes()
    end.touch()
    assert one.wait_exit() == 0
    assert len(ledger.finishes()["busy"]) == 1
    assert [key for key in db.keys("superfetch:*") if owner in key] == []


def test_without_its_pulse_gevents_owner_falls_silent(worker, burn, ledger, db):
    """The control."""
    one, end, owner = busy(worker, ledger, burn, db, pool="gevent", env={"WITHOUT": "pulse"})
    last = db.heard(owner)
    always(lambda: db.heard(owner) == last, during=4 * SHORT["owner_ttl"])
    end.touch()
    eventually(lambda: db.heard(owner) > last, message="heard again when the task ends")
    one.stop()
