"""A worker that ends by an error of its own while it runs a job: that has an end, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from support.servers.faults import kill_connections
from support.waiting import always, eventually

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


@pytest.fixture
def not_forking(worker, shop, ledger, tmp_path):
    """`not_forking(without="", happens="limited_forks")`: a worker that runs "held", and may not
    replace a dead process while there is a file; and that file."""

    def start(without: str = "", happens: str = "limited_forks") -> tuple[Any, Path]:
        file = tmp_path / "no_forks"
        env = {"HAPPENS": happens, "WITHOUT": without, "NO_FORKS": str(file)}
        one = worker(concurrency=2, env=env, options=OPTIONS)
        shop.hold.delay("held")
        [line] = eventually(lambda: ledger.lines("started"))
        file.touch()
        one.wait_log("forks are limited")
        [idle] = [child for child in one.children() if child.pid != line["pid"]]
        idle.kill()
        return one, file

    return start


@pytest.mark.parametrize("happens", ["limited_forks", "forks_without_memory"])
def test_a_refused_fork_is_tried_again_and_costs_no_job_a_strike(
    not_forking, shop, ledger, db, client, happens
):
    one, file = not_forking(happens=happens)
    one.wait_log("cannot fork a pool process")
    kill_connections(client)
    eventually(lambda: "Connection to broker lost" in one.log())
    shop.note.delay("waits")
    always(lambda: one.alive() and "waits" not in ledger.starts(), during=3)
    assert one.log().count("cannot fork a pool process") == 1
    assert "Its pool has 1 of 2 processes" in one.log()
    descriptors = psutil.Process(one.pid).num_fds()
    always(lambda: psutil.Process(one.pid).num_fds() <= descriptors + 2, during=4)
    file.unlink()
    eventually(lambda: "waits" in ledger.finishes(), 5, message="tried again each second")
    ledger.release()
    eventually(lambda: "held" in ledger.finishes())
    assert ledger.runs() == {"held": 1, "waits": 1}
    assert not db.counters()
    assert len(one.children()) == 2
    one.stop()


@pytest.fixture
def with_an_empty_pool(not_forking, shop, ledger, db):
    """`with_an_empty_pool(without="")`: a worker whose last pool process was killed, and which can
    fork none; it has claimed "waits"."""

    def start(without: str = "") -> Any:
        one, _ = not_forking(without, happens="limited_forks,short_patience_with_forks")
        one.wait_log("Its pool has 1 of 2 processes and runs fewer jobs at once")
        ledger.release()
        eventually(lambda: "held" in ledger.finishes())
        eventually(db.settled)
        [last] = one.children()
        last.kill()
        one.wait_log("Its pool has 0 of 2 processes and runs no job")
        shop.note.delay("waits")
        eventually(lambda: db.held(), message="it claims the job")
        return one

    return start


def test_a_worker_without_a_pool_process_leaves_its_jobs_to_others(
    with_an_empty_pool, worker, ledger, db
):
    """It lived on, and kept the jobs that it had claimed."""
    one = with_an_empty_pool()
    assert one.wait_exit() == 1, one.tail()
    assert "no pool process could be forked for 3 s" in one.log()
    assert db.waiting() == ["waits"]
    assert db.strikes() == {"waits": (0, "")}
    worker()
    eventually(lambda: "waits" in ledger.finishes())


def test_the_control_such_a_worker_keeps_its_jobs(with_an_empty_pool, worker, ledger, db):
    one = with_an_empty_pool("ends_of_empty_pools")
    worker(name="idle")
    always(lambda: one.alive() and db.held() and "waits" not in ledger.starts(), during=8)
    one.die()


def test_the_control_else_a_refused_fork_ends_the_worker(not_forking):
    one, file = not_forking("refused_forks")
    one.wait_log("This worker stops because of an internal error")
    file.unlink()
    one.die()
