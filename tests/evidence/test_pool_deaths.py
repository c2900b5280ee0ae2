"""A child of the pool that dies while its worker looks elsewhere, or has ended it itself."""

from __future__ import annotations

import signal

import celery
import pytest

from support.process import is_alive
from support.servers.faults import kill_connections
from support.waiting import always, eventually


@pytest.mark.parametrize(("without", "runs"), [("", 2), ("last_words", 3)])
def test_each_run_of_a_pill_is_a_strike_also_one_that_began_unheard(
    worker, app, shop, ledger, db, tmp_path, without, runs
):
    """The control: it runs once more."""
    funeral = tmp_path / "funeral"
    env = {"HAPPENS": "slow_funerals", "FUNERAL": str(funeral), "WITHOUT": without}
    one = worker(concurrency=2, options={"strike_limit": 2}, env=env)
    # The worker looks at its latest child first: that one has to be alive still.
    first, last = sorted(one.children(), key=lambda child: child.pid)
    shop.run("one", "two")
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
    assert ledger.runs()["pill"] == runs


@pytest.mark.parametrize("without", ["", "second_looks"])
def test_a_child_that_is_not_dead_yet_when_that_is_told_is_replaced_at_once(
    worker, app, ledger, db, without
):
    """The control: when Celery looks again."""
    env = {"HAPPENS": "no_looks", "WITHOUT": without}
    worker(app="features", env=env, concurrency=1, options={"strike_limit": 2})
    app.send_task("features.slow_end", ("job",))
    eventually(lambda: ledger.starts().get("job"))
    if without:
        always(lambda: ledger.runs()["job"] == 1, during=3.0)
        return
    eventually(db.dead)
    assert ledger.runs()["job"] == 2


REMEMBERS = pytest.mark.skipif(celery.VERSION >= (5, 6), reason="it remembers by itself")


@pytest.mark.parametrize("without", ["", pytest.param("dead_children", marks=REMEMBERS)])
def test_a_child_that_dies_while_its_worker_reconnects_is_missed(
    worker, client, shop, ledger, db, without
):
    """Its job stayed in flight until the worker ended: the control."""
    one = worker(env={"HAPPENS": "sudden_ends", "WITHOUT": without})
    shop.run("job")
    kill_connections(client)
    if without:
        one.wait_log("exited with")
        shop.ran("next")
        # Longer than the pool waits for a last word of the dead.
        always(lambda: db.running() == ["job"] and ledger.runs()["job"] == 1, during=12.0)
        return
    eventually(lambda: ledger.runs()["job"] == 2)
    ledger.release()
    eventually(lambda: not db.held())
    assert one.alive()
    assert ledger.runs()["job"] == 2


@pytest.mark.parametrize("without", ["", "cancelled"])
def test_what_was_cancelled_while_the_result_backend_is_away_is_run_again(
    worker, client, shop, ledger, db, without
):
    """It was taken for revoked, acked and gone. The control: for one that killed its child."""
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    one = worker(env={"HAPPENS": "deaf_results", "WITHOUT": without}, conf=conf)
    shop.run("job")
    kill_connections(client)
    one.wait_log("could not be announced: ConnectionError")
    eventually(lambda: ledger.runs()["job"] == 2)
    if without:
        one.wait_log("strike 1 of 3")
        return
    assert "strike 1 of 3" not in one.log(), "it is not the job's fault"
    ledger.release()
    eventually(lambda: not db.held())
    assert list(ledger.finishes()) == ["job"]
    assert one.alive()


@pytest.mark.parametrize("without", ["", "outlived"])
def test_a_child_that_outlived_the_signal_for_one_job_loses_the_next_like_any_other(
    worker, app, shop, ledger, db, without
):
    """billiard remembers that the child was told to end; Celery took the next job for revoked, and
    that is the control."""
    one = worker(app="features", env={"WITHOUT": without}, concurrency=1)
    [child] = one.children()
    deaf = app.send_task("features.outlive", ("deaf",))
    eventually(lambda: ledger.starts().get("deaf"))
    app.control.revoke(deaf.id, terminate=True)
    one.wait_log(f"Terminating {deaf.id}")
    ledger.release("deaf")
    shop.run("victim")
    assert child.is_running(), "it has to be the same"
    child.kill()
    if without:
        eventually(lambda: not db.held())
        assert not db.waiting()
        assert ledger.runs()["victim"] == 1
        assert "victim" not in ledger.finishes()
        return
    eventually(lambda: ledger.runs()["victim"] == 2)
    assert "pool process lost: signal 9 (SIGKILL)" in one.log()
    ledger.release("victim")
    eventually(lambda: not db.held())
    assert set(ledger.finishes()) == {"deaf", "victim"}


@pytest.mark.parametrize(
    ("pool", "status", "reason"),
    [
        ("prefork", None, "pool process lost: exitcode 0"),
        ("prefork", 3, "pool process lost: exitcode 3"),
        ("prefork", "bye", "pool process lost: exitcode 1"),
        ("prefork", "interrupt", "pool process lost: KeyboardInterrupt"),
        ("threads", "bye", "it raised SystemExit"),
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


def test_a_task_that_shuts_a_solo_worker_down_is_killed_at_its_third_strike(
    worker, app, ledger, db
):
    """It raises what ends a worker, as Celery lets it: each worker that runs it stops in order."""
    app.send_task("features.stops", ("job",))
    for runs in range(1, 4):
        assert worker(app="features", pool="solo", ready=False).wait_exit() == 0
        assert ledger.runs() == {"job": runs}
    [record] = db.dead()
    assert [entry["strike"] for entry in record["history"]] == ["exact"] * 3
    assert "WorkerShutdown" in record["reason"]
