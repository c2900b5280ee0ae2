"""Told to stop warmly: what waits goes back at once, what runs ends, and nothing is left."""

from __future__ import annotations

import signal

import pytest

from support.rows import row
from support.servers.database import Database
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.scene import SHUTDOWN, URGENT, Scene
from support.workers.worker import SCRIPT


def play(scenes: list[Scene], how: int | str, *, code: int | None = 0, again: bool = False) -> None:
    """Stop the workers of all scenes the same way, and look at each step of it."""
    for scene in scenes:
        scene.settle()
    for scene in scenes:
        scene.tell(how)
    for scene in scenes:
        scene.has_given_back()
        scene.is_stopping()
        if again:
            scene.tell(how)
    for scene in scenes:
        scene.has_given_back()
        scene.release()
    for scene in scenes:
        scene.ends(code)
        scene.ran_once_and_alone()
        scene.has_given_back()


@row("TERM")
def test_term_gives_back_what_waits_at_once_and_lets_run_what_runs(scenes):
    all_pools = scenes("prefork", "threads", "solo", "gevent")
    play(all_pools, signal.SIGTERM)
    runs = all_pools[0].plays_out()
    assert set(runs.values()) == {1}, runs


@row("TERM")
def test_a_busy_worker_that_is_told_to_stop_loses_and_doubles_nothing(scenes):
    """Many short jobs: some are between the queue, the worker, its pool and their ack."""
    jobs = {f"job{n}" for n in range(600)}
    busy = scenes("prefork", "threads", "gevent", jobs=False, concurrency=4)
    for scene in busy:
        scene.worker.wait_ready()
    for scene in busy:
        scene.tell(signal.SIGSTOP)  # it may be faster than who publishes
        scene.note(*sorted(jobs))
        scene.tell(signal.SIGCONT)
        scene.says(lambda s=scene: len(s.ledger.lines("finished")) > 30, "it is busy")
        scene.tell(signal.SIGTERM)
    for scene in busy:
        assert scene.worker.wait_exit() == 0
        assert not scene.db.keys("superfetch:private:*"), scene.pool
        ran, left = list(scene.runs()), scene.db.waiting()
        assert sorted([*ran, *left]) == sorted(jobs), scene.pool
        assert set(scene.runs().values()) == {1}, scene.pool
        assert sorted(scene.ledger.finishes()) == sorted(ran), scene.pool
    assert any(scene.db.length() for scene in busy), "all had ended by themselves"


@row("TERM twice")
def test_a_second_term_changes_nothing(scenes):
    play(scenes("prefork", "gevent"), signal.SIGTERM, again=True)


@row("INT")
def test_int_is_a_warm_shutdown_with_another_exit_code(scenes):
    play(scenes("prefork", "solo"), signal.SIGINT, code=1)


@row("control shutdown")
def test_a_shutdown_by_remote_control_is_as_warm_as_term(scenes):
    """It comes without a signal of Celery's. (Solo reads it when its job has ended.)"""
    play(scenes("prefork", "gevent"), SHUTDOWN)
    (solo,) = scenes("solo")
    solo.settle()
    solo.tell(SHUTDOWN)
    solo.release()
    solo.ends()
    # The commands are served between two jobs, and there may be one before it is their turn.
    assert set(solo.runs().values()) == {1}
    assert set(solo.runs()) == set(solo.ledger.finishes())
    left = [name for name in ("n0", "n1", "n2", "late") if name not in solo.runs()]
    assert solo.db.waiting(URGENT) == left


@row("HUP")
def test_hup_stops_warmly_and_starts_again_under_the_same_pid(scenes):
    both = scenes("prefork", "threads", program=[SCRIPT])
    for scene in both:
        scene.settle()
        scene.tell(signal.SIGHUP)
    for scene in both:
        scene.has_given_back()
        scene.is_stopping()
        scene.release()
    rest = {"running", "n0", "n1", "n2", "late", "p0", "p1", "p2", "p3"}
    for scene in both:
        scene.says(lambda s=scene: set(s.ledger.finishes()) >= rest, "the new program runs it")
        assert set(scene.runs().values()) == {1}, scene.pool
        (new,) = scene.db.owners()
        assert new != scene.owner
        assert new.split("|")[1] == scene.owner.split("|")[1], "the pid is the same"
        assert not scene.strikes()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_requeue_that_is_refused_at_the_stop_is_sent_again_while_a_job_runs(
    worker, make_app, ledger, url, fresh_server, pool
):
    """Nothing sent it before the last job had ended, which may take hours, and the worker's
    heartbeats kept its peers from recovering the jobs."""
    own: Server = fresh_server()
    client, db = own.client(), Database(own.client())
    place = {"url": own.url(), "result_url": url, "options": {"heartbeat_interval": 1}}
    one = worker(pool=pool, concurrency=1, args=["--prefetch-multiplier=4"], **place)
    shop = make_app(superfetch=False, url=own.url())
    shop.tasks["shop.hold"].delay("long", 600)
    eventually(ledger.starts)
    for number in range(3):
        shop.tasks["shop.note"].delay(f"n{number}")
    eventually(lambda: not db.length(), message="it has claimed all")
    client.config_set("min-replicas-to-write", 1)
    one.term()
    one.wait_log("are requeued when Redis accepts it")
    client.config_set("min-replicas-to-write", 0)
    worker(pool="threads", concurrency=1, **place)
    eventually(lambda: set(ledger.finishes()) == {"n0", "n1", "n2"}, 20)
    assert "requeued jobs that had not started" not in one.log(), "they were not, at that time"
    assert one.alive()
    ledger.release()
    assert one.wait_exit() == 0
    eventually(lambda: not db.held())
    assert ledger.runs() == {"long": 1, "n0": 1, "n1": 1, "n2": 1}


def test_a_job_that_waits_for_its_requeue_at_the_stop_waits_for_no_other_job(
    worker, make_app, ledger, client, db
):
    """The server has refused to move it to the dead set, a moment before the stop."""
    client.set("superfetch:dead", "a text")
    shop = make_app(superfetch=False)
    one = worker(pool="threads", concurrency=1, options={"heartbeat_interval": 1})
    shop.tasks["shop.hold"].delay("long", 600)
    eventually(ledger.starts)
    shop.send_task("no.such", queue="celery")
    one.wait_log("could not be moved to the dead set")
    one.term()
    eventually(lambda: db.length() == 1, 2, message="without the pause after a refusal")
    client.delete("superfetch:dead")
    assert one.alive()
    ledger.release()
    assert one.wait_exit() == 0
    assert ledger.runs() == {"long": 1}


@pytest.mark.parametrize("without", ["", "reads_that_never_block"], ids=["", "control"])
def test_a_process_that_dies_while_it_sends_a_large_failure_holds_up_no_stop(
    worker, shop, ledger, db, without
):
    """The worker has read a part of it. In the control it waits for the rest for ever, as Celery
    does."""
    env = {"HAPPENS": "slow_results", "WITHOUT": without}
    one = worker(pool="prefork", concurrency=1, env=env).wait_ready()
    [child] = one.children()
    child.suspend()
    shop.fail.delay("x" * 20_000)
    one.wait_log("received")
    eventually(db.running, message="the process has the job")
    one.term()
    one.wait_log("Warm shutdown")
    child.resume()
    eventually(lambda: ledger.starts().get("result"), message="a part of the failure is sent")
    always(one.alive, during=1.5)
    child.kill()
    if without:
        always(one.alive, during=5.0)
        return
    assert one.wait_exit() == 0
    assert not db.held()
    assert db.length() == 1, "the job is requeued: the stop has cut it short"
