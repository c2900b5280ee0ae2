"""A worker that ends by an error of its own while it runs a job: that has an end, too."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from support.waiting import eventually

OPTIONS = {"heartbeat_interval": 1.0}


def end_by_itself(worker: Any, ledger: Any, db: Any, run: int, state: str, **settings: Any) -> None:
    """Start a worker that fails as soon as it runs the job; its supervisor does not wait for it."""
    one = worker(options=OPTIONS, **settings)
    one.wait_log("Unrecoverable error")
    eventually(lambda: ledger.runs().get("poison") == run)
    owner = db.owner_of("poison")
    db.wait_heard(db.heard_of([owner]))
    eventually(lambda: db.fact(owner, "state") == state)
    one.die()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_it_ran_gets_a_strike_and_what_waited_none(worker, shop, ledger, db, pool):
    settings = {"pool": pool, "env": {"HAPPENS": "own_errors"}}
    shop.hold.delay("poison")
    for run in range(1, 4):
        end_by_itself(worker, ledger, db, run, "running", **settings)
    shop.note.delay("good")
    one = worker(**settings)
    eventually(lambda: "good" in ledger.finishes())
    [dead] = eventually(db.dead)
    assert [event["strike"] for event in dead["history"]] == ["exact"] * 3
    assert ledger.runs() == {"poison": 3, "good": 1}
    eventually(lambda: not db.private_lists())
    assert one.alive()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_control_else_each_of_its_ends_is_a_stop(worker, shop, ledger, db, pool):
    env = {"HAPPENS": "own_errors", "WITHOUT": "own_errors"}
    shop.hold.delay("poison")
    for run in range(1, 5):
        end_by_itself(worker, ledger, db, run, "stopping", pool=pool, env=env)
    assert not db.dead()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_ends_before_its_worker_does_is_acked(worker, shop, ledger, db, pool):
    """Its shutdown is a warm one: it waits."""
    shop.hold.delay("poison")
    one = worker(pool=pool, env={"HAPPENS": "own_errors"})
    one.wait_log("Unrecoverable error")
    ledger.release()
    assert one.wait_exit() != 0
    assert list(ledger.finishes()) == ["poison"]
    assert not db.private_lists()
    assert not db.waiting()
    assert not db.owners(), "it left in order"


@pytest.mark.parametrize(("without", "code"), [("", 1), ("exit_codes", 0)])
def test_a_worker_without_file_descriptors_exits_as_one_that_failed(
    worker, shop, ledger, db, without, code
):
    """A supervisor that restarts only on failure starts it again. The control exits with 0."""
    one = worker(concurrency=1, env={"WITHOUT": without})
    shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    process = psutil.Process(one.pid)
    process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), process.num_fds()))
    [child] = one.children()
    child.kill()
    assert one.wait_exit() == code, one.tail()
    assert "Too many open files" in one.log()
    ledger.release()
    worker(concurrency=1)
    eventually(lambda: "h" in ledger.finishes())
    eventually(lambda: not db.private_lists())
    assert ledger.runs()["h"] <= 3
