"""Cut short: what waits goes back as ever, and what ran goes back to be run once more."""

from __future__ import annotations

import ctypes
import os
import signal

import pytest

from support.rows import row
from support.waiting import always, eventually
from support.workers.scene import LATER, REST, URGENT, Scene

#: Longer than it takes to look, shorter than anybody's patience.
SOFT = 5.0


def settle_and_tell(scenes: list[Scene], how: int) -> None:
    for scene in scenes:
        scene.settle()
    for scene in scenes:
        scene.tell(how)


def is_cut(scene: Scene, code: int | None = None) -> None:
    """The running job is in front of what waited, and the worker left nothing."""
    scene.ends(code)
    scene.was_cut()
    scene.has_given_back(cut=True)


@row("QUIT")
def test_quit_cuts_what_runs_and_gives_back_everything_in_order(scenes):
    cut = scenes("prefork", "solo", "gevent")
    (threads,) = scenes("threads")
    settle_and_tell([*cut, threads], signal.SIGQUIT)
    for scene in cut:
        is_cut(scene, 0)
    # Nobody can end a thread: its job goes on, and so is not given to anybody else.
    threads.has_given_back()
    threads.is_stopping()
    threads.release()
    threads.ends(0)
    threads.ran_once_and_alone()
    for scene in cut:
        scene.release()
    runs = cut[-1].plays_out()
    assert runs.pop("running") == 2
    assert set(runs.values()) == {1}, runs


def test_an_idle_worker_ends_at_once_and_without_an_error(worker):
    """F2. Its pool is gone by the time at which Celery flushes it."""
    quick, remapped = worker(), worker(env={"REMAP_SIGTERM": "SIGQUIT"})
    quick.wait_ready().quit()
    remapped.wait_ready().term()
    for process in (quick, remapped):
        process.wait_exit()
        assert "Traceback" not in process.log(), process.tail()


@pytest.mark.parametrize(
    ("pool", "without"), [("prefork", ""), ("prefork", "unannounced_ends"), ("gevent", "")]
)
def test_quit_ends_a_job_with_early_ack_while_the_result_backend_is_away(
    worker, app, ledger, db, fresh_server, pool, without
):
    """Celery's handler ended by the error or asked without end, and the worker waited for the job:
    the control."""
    results = fresh_server()
    conf = {"result_backend_always_retry": True} | {
        "result_backend_transport_options": {"retry_policy": {"max_retries": 1}}
    }
    place = {"result_url": results.url(), "conf": conf, "env": {"WITHOUT": without}}
    one = worker(app="features", pool=pool, concurrency=1, **place)
    app.send_task("features.early_hold", ("job",))
    eventually(lambda: ledger.starts() and not db.held())
    results.close()
    one.quit()
    if without:
        always(one.alive, during=5)
        one.die()
        return
    assert one.wait_exit() == 0, one.tail()
    assert "The run of job features.early_hold" in one.log()
    assert not ledger.finishes()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("where", ["claim", "start"])
def test_a_signal_in_the_midst_of_a_claim_or_a_start_costs_nothing(
    worker, shop, ledger, db, tmp_path, pool, where
):
    """Celery's handler ends the pool at once, and returns into the tick that it interrupted."""
    file = tmp_path / "quit"
    one = worker(pool=pool, env={"HAPPENS": f"quits_in_a_{where}", "QUIT": str(file)}).wait_ready()
    file.touch()
    shop.note.delay("job")
    assert one.wait_exit() == 0, one.tail()
    assert "Traceback" not in one.log(), one.tail()
    assert (db.waiting(), db.private_lists(), ledger.runs()) == (["job"], [], {})
    worker(pool=pool)
    eventually(lambda: ledger.runs() == {"job": 1} and not db.private_lists())
    assert not db.strikes()


@pytest.mark.parametrize("without", ["", "whole_writes"])
def test_a_signal_in_the_midst_of_a_write_waits_for_its_end(
    worker, shop, ledger, db, tmp_path, without
):
    """The control, as stock does: the process waits for the rest of its job, and the worker for
    the process, for ever."""
    file = tmp_path / "quit"
    env = {"HAPPENS": "quits_in_a_write", "QUIT": str(file), "WITHOUT": without}
    one = worker(concurrency=1, env=env).wait_ready()
    file.touch()
    shop.note.delay("job")
    if without:
        one.wait_log("Hitting Ctrl+C again")
        always(one.alive, during=3)
        return
    assert one.wait_exit() == 0, one.tail()
    assert "Traceback" not in one.log(), one.tail()
    assert not db.private_lists()
    assert db.waiting() == ["job"] or "job" in ledger.finishes()


@pytest.mark.parametrize("without", ["", "whole_writes"])
def test_a_process_that_reads_nothing_does_not_hold_up_the_end(
    worker, app, shop, ledger, db, without
):
    """Its pipe has no room for the whole job. The control, as stock does: the worker waits."""
    one = worker(concurrency=1, env={"WITHOUT": without}).wait_ready()
    shop.ran("first")
    eventually(db.settled)  # the worker has read its end, and the process is free
    [child] = one.children()
    child.suspend()
    shop.note.apply_async(("job",), headers={"filler": "x" * 2_000_000})
    eventually(lambda: "job" in db.running())
    assert eventually(lambda: app.control.ping(timeout=2)), "the loop has begun to write it"
    one.quit()
    if without:
        one.wait_log("Hitting Ctrl+C again")
        always(one.alive, during=3)
        return
    assert one.wait_exit() == 0, one.tail()
    assert (db.waiting(), db.private_lists()) == (["job"], [])
    worker(concurrency=1)
    eventually(lambda: ledger.runs() == {"first": 1, "job": 1} and not db.private_lists())
    assert not db.strikes()


@row("INT twice")
def test_a_second_int_makes_a_warm_shutdown_cold(scenes):
    cut = scenes("prefork", "solo", "gevent")
    settle_and_tell(cut, signal.SIGINT)
    for scene in cut:
        scene.has_given_back()
        scene.is_stopping()
        scene.tell(signal.SIGINT)
    for scene in cut:
        is_cut(scene)


@row("worker_soft_shutdown_timeout")
def test_a_soft_shutdown_gives_back_at_once_and_cuts_only_what_takes_too_long(scenes):
    soft = {"worker_soft_shutdown_timeout": SOFT}
    quick = scenes("prefork", "threads", "solo", "gevent", conf=soft)
    slow = scenes("prefork", "solo", "gevent", conf=soft)
    for scene in [*quick, *slow]:
        scene.settle()
    for scene in quick:
        scene.tell(signal.SIGQUIT)
        scene.has_given_back()
        scene.is_stopping()
        scene.release()
    for scene in slow:
        scene.tell(signal.SIGQUIT)
        scene.has_given_back()
        scene.is_stopping()
    for scene in quick:
        scene.ends(0)
        scene.ran_once_and_alone()
        scene.has_given_back()
    for scene in slow:
        is_cut(scene, 0)


@row("worker_enable_soft_shutdown_on_idle")
def test_an_idle_worker_has_no_job_for_later_though_it_waits(scenes):
    soft = {"worker_soft_shutdown_timeout": SOFT, "worker_enable_soft_shutdown_on_idle": True}
    idle = scenes("prefork", "solo", conf=soft, jobs=False)
    for scene in idle:
        scene.note("eta0", "eta1", countdown=3600)
        scene.worker.wait_ready()
        scene.says(lambda s=scene: s.db.parked() == ["eta0", "eta1"], "they are parked")
        [scene.owner] = scene.db.owners()
    for scene in idle:
        scene.tell(signal.SIGQUIT)
    for scene in idle:
        if scene.pool == "prefork":
            assert scene.worker.alive(), "it waits for what will not come"
    for scene in idle:
        scene.ends(0)
        assert (scene.db.parked(), scene.db.waiting()) == (["eta0", "eta1"], [])
        assert not scene.runs()


@row("TERM, then KILL")
def test_a_deploy_whose_patience_ended_costs_nobody_a_strike(scenes):
    both = scenes("prefork", "threads")
    settle_and_tell(both, signal.SIGTERM)
    for scene in both:
        scene.has_given_back()
        scene.is_stopping()
        scene.worker.kill9_all()
        scene.release()
    for scene in both:
        scene.worker.wait_gone()
        runs = scene.plays_out(tombstone=True)
        assert runs.pop("running") == 2
        assert set(runs.values()) == {1}, runs
        assert not scene.strikes()
        assert scene.db.stat("recovered") == 1
        assert not scene.db.dead()


@row("KILL")
def test_a_kill_gives_a_strike_to_the_running_job_alone(scenes):
    both, jobs = scenes("prefork", "threads"), {"running", *REST[URGENT], *REST[LATER]}
    for scene in both:
        scene.settle()
    for scene in both:
        scene.worker.kill9_all()
    for scene in both:
        scene.worker.wait_gone()
        with scene.start("solo", concurrency=1) as heir:
            heir.wait_ready()
            scene.says(lambda s=scene: s.runs().get("running") == 2, "it runs again")
            [row] = scene.strikes()
            assert int(row["strikes"]) == 1
            scene.release()
            scene.says(lambda s=scene: set(s.ledger.finishes()) == jobs, "all jobs run")
        runs = scene.runs()
        assert runs.pop("running") == 2
        assert set(runs.values()) == {1}, runs
        assert not scene.db.dead()


@row("TERM to the group")
def test_a_group_that_is_told_to_stop_costs_nobody_a_strike(scenes):
    """As systemd does it: the pool's children get the SIGTERM, too, and die of it."""
    (scene,) = scenes("prefork")
    scene.settle()
    scene.worker.term_all()
    scene.worker.wait_exit()
    scene.left_nothing()
    scene.release()
    runs = scene.plays_out()
    assert runs.pop("running") == 2
    assert set(runs.values()) == {1}, runs
    assert not scene.db.dead()


def test_a_quit_that_finds_the_loop_at_work_on_its_jobs_comes_after_that(worker, shop, ledger):
    """Celery's handler joins the threads of the pool, and one of them settles its job."""
    one = worker(env={"HAPPENS": "slow_loop"}, pool="threads", concurrency=1).wait_ready()
    shop.run("job")
    ledger.release("stay")
    eventually(lambda: ledger.starts().get("lock"))
    one.quit()
    ledger.release("job")
    eventually(lambda: ledger.finishes().get("job"))
    ledger.release("lock")
    assert one.wait_exit() == 0
    assert ledger.runs()["job"] == 1


def quit_main_thread(pid: int) -> None:
    """Send QUIT to the main thread of a process. If another thread got the signal, the main thread
    could go on for a moment before Python calls the handler in it."""
    tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # of glibc since 2.30
    assert tgkill is None or tgkill(pid, pid, signal.SIGQUIT) == 0
    if tgkill is None:
        os.kill(pid, signal.SIGQUIT)


@pytest.mark.parametrize("soft", [0, SOFT])
@pytest.mark.parametrize("without", ["", "ends_of_late_starts"])
def test_a_job_whose_start_a_stopping_worker_has_not_read_is_ended_as_well(
    worker, shop, ledger, db, soft, without
):
    """On a busy machine a job runs for a moment before its worker knows. The control, as stock
    does: the worker waits for that job, however long it runs."""
    settings = {"env": {"HAPPENS": "slow_processes", "WITHOUT": without}, "concurrency": 1}
    one = worker(conf={"worker_soft_shutdown_timeout": soft}, **settings).wait_ready()
    shop.hold.delay("job")
    eventually(lambda: ledger.starts().get("received"))
    os.kill(one.pid, signal.SIGSTOP)
    ledger.release("received")
    eventually(lambda: ledger.starts().get("job"))
    quit_main_thread(one.pid)
    os.kill(one.pid, signal.SIGCONT)
    if without:
        always(one.alive, during=3)
        ledger.release("job")
    assert one.wait_exit() == 0
    assert set(ledger.finishes()) == ({"job"} if without else set())
    assert db.waiting() == ([] if without else ["job"])


@pytest.mark.parametrize("without", ["", "undisturbed_starts"])
def test_a_quit_that_finds_the_loop_at_the_start_of_a_job_comes_after_that(
    worker, shop, ledger, db, without
):
    """The control, as stock does: Celery's handler waits for the end of the job, since it does not
    know yet that it runs, and the loop beneath, which does, waits for the handler."""
    env = {"HAPPENS": "slow_starts", "WITHOUT": without}
    one = worker(env=env, options={"heartbeat_interval": 0.5}, concurrency=1).wait_ready()
    [owner] = db.owners()
    shop.hold.delay("job")
    eventually(lambda: {"accepted", "job"} <= ledger.starts().keys())
    one.quit()
    eventually(lambda: db.fact(owner, "state") == "stopping")
    if without:
        ledger.release("accepted")
        always(one.alive, during=3)
        ledger.release("job")
        eventually(lambda: "job" in ledger.finishes())
        return
    ledger.release("accepted")
    assert one.wait_exit() == 0
    assert not ledger.finishes()
    assert db.waiting() == ["job"]
