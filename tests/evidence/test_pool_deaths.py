"""A child of the pool that dies while its worker looks elsewhere, or has ended it itself."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import pytest
import redis
from celery import Celery

from support.process import is_alive
from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.worker import Worker

Runs = Callable[[bool], int]


@pytest.fixture
def runs(
    worker: Any, app: Celery, shop: SimpleNamespace, ledger: Ledger, db: Database, tmp_path: Path
) -> Runs:
    """How often a poison pill with two strikes ran, when it began unheard the first time."""

    def count(deaf: bool) -> int:
        funeral = tmp_path / "funeral"
        one = worker(
            concurrency=2,
            options={"strike_limit": 2},
            env={
                "HAPPENS": "slow_funerals",
                "FUNERAL": str(funeral),
                "WITHOUT": "last_words" if deaf else "",
            },
        )
        # The worker looks at its latest child first: that one has to be alive still.
        first, last = sorted(one.children(), key=lambda child: child.pid)
        for job in ("one", "two"):
            shop.hold.delay(job)
        eventually(lambda: len(ledger.starts()) == 2)
        runner = {line["pid"]: line["job"] for line in ledger.lines("started")}
        ledger.release(runner[last.pid])
        eventually(lambda: list(ledger.finishes()) == [runner[last.pid]])
        eventually(lambda: [*db.held().values()] == [[runner[first.pid]]])
        last.send_signal(signal.SIGSTOP)
        pill = shop.kill_child.delay("pill")
        eventually(lambda: "pill" in db.running())
        assert app.control.ping(timeout=30, limit=1)  # by now it is in the child's pipe
        funeral.touch()
        first.kill()
        one.wait_log(f"pid:{first.pid} exited")
        last.send_signal(signal.SIGCONT)
        eventually(lambda: not is_alive(last))
        ledger.release(runner[first.pid])
        funeral.unlink()
        eventually(lambda: [record["task_id"] for record in db.dead()] == [pill.id])
        assert len(ledger.finishes()) == 2
        return ledger.runs()["pill"]

    return count


def test_each_of_its_runs_is_a_strike(runs):
    assert runs(False) == 2


def test_otherwise_it_runs_once_more(runs):
    assert runs(True) == 3


@pytest.fixture
def slow_end(worker: Any, app: Celery, ledger: Ledger) -> Callable[..., None]:
    """A job whose child is told of before it is dead."""

    def end(without: str = "") -> None:
        env = {"HAPPENS": "no_looks", "WITHOUT": without}
        worker(app="features", env=env, concurrency=1, options={"strike_limit": 2})
        app.send_task("features.slow_end", ("job",))
        eventually(lambda: ledger.starts().get("job"))

    return end


def test_a_child_that_is_not_dead_yet_when_that_is_told_is_replaced_at_once(slow_end, ledger, db):
    slow_end()
    eventually(db.dead)
    assert ledger.runs()["job"] == 2


def test_otherwise_it_is_when_celery_looks_again(slow_end, ledger):
    slow_end(without="second_looks")
    always(lambda: ledger.runs()["job"] == 1, during=3.0)


def test_a_child_that_dies_while_its_worker_reconnects_is_missed(worker, client, shop, ledger, db):
    """Its job stayed in flight until the worker ended."""
    one = worker(env={"HAPPENS": "sudden_ends"})
    shop.hold.delay("job")
    eventually(lambda: ledger.starts().get("job"))
    kill_connections(client)
    eventually(lambda: ledger.runs()["job"] == 2)
    ledger.release()
    eventually(lambda: not db.held())
    assert one.alive()
    assert ledger.runs()["job"] == 2


@pytest.mark.skipif(celery.VERSION >= (5, 6), reason="later versions remember it by themselves")
def test_otherwise_its_job_stays_with_the_worker(worker, client, shop, ledger, db):
    one = worker(env={"HAPPENS": "sudden_ends", "WITHOUT": "dead_children"})
    shop.hold.delay("job")
    eventually(lambda: ledger.starts().get("job"))
    kill_connections(client)
    one.wait_log("exited with")
    shop.note.delay("next")
    eventually(lambda: "next" in ledger.finishes())
    # Longer than the pool waits for a last word of the dead.
    always(lambda: db.running() == ["job"] and ledger.runs()["job"] == 1, during=12.0)


@pytest.fixture
def cancelled(
    worker: Any, client: redis.Redis, shop: SimpleNamespace, ledger: Ledger
) -> Callable[..., Worker]:
    """A worker that has cancelled a job, and could not tell the result backend."""

    def cancel(**env: str) -> Worker:
        one: Worker = worker(
            env={"HAPPENS": "deaf_results", **env},
            conf={"worker_cancel_long_running_tasks_on_connection_loss": True},
        )
        shop.hold.delay("job")
        eventually(lambda: ledger.starts().get("job"))
        kill_connections(client)
        one.wait_log("Failed to cancel active request")
        return one

    return cancel


GUARDED = pytest.mark.skipif(celery.VERSION < (5, 7), reason="there the worker ends over it")


@GUARDED
def test_what_was_cancelled_while_the_result_backend_is_away_is_run_again(cancelled, ledger, db):
    """It was taken for revoked, acked and gone."""
    one = cancelled()
    eventually(lambda: ledger.runs()["job"] == 2)
    assert "strike 1 of 3" not in one.log(), "it is not the job's fault"
    ledger.release()
    eventually(lambda: not db.held())
    assert list(ledger.finishes()) == ["job"]
    assert one.alive()


@GUARDED
def test_otherwise_it_is_taken_for_a_job_that_killed_its_child(cancelled, ledger):
    one = cancelled(WITHOUT="cancelled")
    eventually(lambda: ledger.runs()["job"] == 2)
    one.wait_log("strike 1 of 3")


@pytest.fixture
def victim(
    worker: Any, app: Celery, client: redis.Redis, shop: SimpleNamespace, ledger: Ledger
) -> Callable[..., Worker]:
    """A worker whose child outlived the signal for one job, and died of another."""

    def outlive(**env: str) -> Worker:
        one: Worker = worker(app="features", env=env, concurrency=1)
        [child] = one.children()
        deaf = app.send_task("features.outlive", ("deaf",))
        eventually(lambda: ledger.starts().get("deaf"))
        app.control.revoke(deaf.id, terminate=True)
        one.wait_log(f"Terminating {deaf.id}")
        ledger.release("deaf")
        shop.hold.delay("victim")
        eventually(lambda: ledger.starts().get("victim"))
        assert child.is_running(), "it has to be the same"
        child.kill()
        return one

    return outlive


def test_a_child_that_outlived_the_signal_for_one_job_loses_the_next_like_any_other(
    victim, ledger, db
):
    """billiard remembers that the child was told to end; Celery took the next job for revoked."""
    victim()
    eventually(lambda: ledger.runs()["victim"] == 2)
    ledger.release("victim")
    eventually(lambda: not db.held())
    assert set(ledger.finishes()) == {"deaf", "victim"}


def test_otherwise_the_next_is_revoked_and_gone(victim, ledger, db):
    victim(WITHOUT="outlived")
    eventually(lambda: not db.held())
    assert not db.waiting()
    assert ledger.runs()["victim"] == 1
    assert "victim" not in ledger.finishes()


@pytest.mark.parametrize(
    ("pool", "status", "reason"),
    [
        ("prefork", None, "pool process lost: exitcode 0"),
        ("prefork", 3, "pool process lost: exitcode 3"),
        ("prefork", "bye", "pool process lost: exitcode 1"),
        ("threads", "bye", "it raised SystemExit('bye')"),
        ("gevent", 3, "it raised SystemExit(3)"),
        ("solo", 3, "it raised SystemExit(3)"),
    ],
)
def test_a_task_that_exits_is_a_strike_and_its_reason_is_one_line(
    worker, app, ledger, db, pool, status, reason
):
    worker(app="features", pool=pool, concurrency=1, options={"strike_limit": 2})
    app.send_task("features.exits", ("job", status))
    [record] = eventually(db.dead)
    assert [record["reason"], *{row["reason"] for row in record["history"]}] == [reason] * 2
    assert ledger.runs() == {"job": 2}


def test_a_task_that_shuts_a_solo_worker_down_goes_back_without_a_strike(worker, app, ledger, db):
    """It asks for a warm shutdown, as SIGTERM does: each worker that runs it stops."""
    app.send_task("features.stops", ("job",))
    for runs in range(1, 5):
        assert worker(app="features", pool="solo", ready=False).wait_exit() == 0
        assert ledger.runs() == {"job": runs}
        assert db.waiting() == ["job"]
    assert not [row for row in db.counters() if int(row.get("strikes", 0))]
    assert not db.dead()
