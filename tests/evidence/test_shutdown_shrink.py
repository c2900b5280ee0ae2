"""A worker that changes at run time: smaller or newer pools, fewer or more queues."""

from __future__ import annotations

from support.rows import row
from support.waiting import always
from support.workers.scene import Scene


def goes_on(scene: Scene, jobs: set[str]) -> None:
    """Every job has run once, nothing is held, and the owner is who it was."""
    scene.says(lambda: set(scene.ledger.finishes()) == jobs, "all ran")
    assert set(scene.runs().values()) == {1}, scene.runs()
    scene.says(lambda: not scene.claimed(), "nothing is held")
    assert scene.db.owners() == [scene.owner]
    assert scene.db.fact(scene.owner, "state") == "running"
    assert not scene.db.counters()
    assert not scene.db.stat("recovered")


@row("--max-tasks-per-child", "--max-memory-per-child")
def test_a_pool_process_that_is_replaced_takes_no_job_along(scenes):
    jobs = [f"job{n}" for n in range(12)]
    both = scenes("prefork", jobs=False, concurrency=2, args=["--max-tasks-per-child=2"])
    both += scenes("prefork", jobs=False, concurrency=2, args=["--max-memory-per-child=1"])
    for scene in both:
        scene.worker.wait_ready()
        (scene.owner,) = scene.db.owners()
        scene.note(*jobs)
    for scene in both:
        goes_on(scene, set(jobs))
        pids = {line["pid"] for line in scene.ledger.lines("started")}
        assert len(pids) > 2, "the processes were replaced"


@row("autoscale down")
def test_a_pool_that_shrinks_leaves_running_and_reserved_jobs_alone(scenes):
    (scene,) = scenes(
        "prefork", jobs=False, args=["--autoscale=3,1"], env={"AUTOSCALE_KEEPALIVE": "1"}
    )
    scene.worker.wait_ready()
    (scene.owner,) = scene.db.owners()
    scene.hold("a", "b", "c")
    scene.says(lambda: set(scene.runs()) == {"a", "b", "c"}, "three run side by side")
    for name in ("b", "c"):
        scene.ledger.release(name)
    scene.says(lambda: len(scene.worker.children()) == 1, "the pool has shrunk")
    scene.note("next")
    scene.says(lambda: scene.db.held() == {scene.owner: ["a", "next"]}, "it is reserved")
    scene.ledger.release("a")
    scene.says(lambda: set(scene.ledger.finishes()) == {"a", "b", "c", "next"}, "all ran")
    assert set(scene.runs().values()) == {1}
    scene.says(lambda: not scene.db.held(), "none is left")
    assert not scene.db.counters()


@row("control pool_restart")
def test_a_pool_that_is_restarted_finishes_what_runs_and_runs_what_is_reserved(scenes):
    (scene,) = scenes("prefork", jobs=False, conf={"worker_pool_restarts": True})
    scene.worker.wait_ready()
    (scene.owner,) = scene.db.owners()
    scene.hold("running")
    scene.note("n0", "n1")
    scene.says(lambda: len(scene.db.held().get(scene.owner, ())) == 3, "all is claimed")
    scene.says(lambda: scene.runs().get("running") == 1, "it runs")
    old = scene.worker.children()
    assert scene.app.control.pool_restart(reply=True, timeout=10, limit=1)
    # The new process may come before the old one has ended, and begin with what is reserved.
    always(lambda: scene.runs()["running"] == 1, 0.5, message="it runs on, and no second time")
    scene.release()
    goes_on(scene, {"running", "n0", "n1"})
    scene.note("n2")
    goes_on(scene, {"running", "n0", "n1", "n2"})
    assert scene.worker.children() != old, "the process is another one"


@row("control cancel_consumer", "control add_consumer")
def test_a_queue_that_is_cancelled_keeps_what_comes_and_its_reserved_jobs_run(scenes):
    both = scenes("prefork", "gevent", jobs=False)
    for scene in both:
        scene.worker.wait_ready()
        (scene.owner,) = scene.db.owners()
        scene.hold("running")
        scene.note("n0", "n1")
        scene.says(lambda s=scene: s.runs() and s.claimed() >= 2, "jobs are reserved")
        assert scene.app.control.cancel_consumer("celery", reply=True, timeout=10, limit=1)
    for scene in both:
        if scene.pool != "gevent":  # its consumer waits for a free slot first
            scene.worker.wait_log("Canceling queue")
        scene.release()
        scene.worker.wait_log("Canceling queue")
        scene.says(lambda s=scene: not s.claimed(), "what was reserved has run")
        ran = set(scene.runs())
        assert set(scene.ledger.finishes()) == ran
        left = [name for name in ("n0", "n1") if name not in ran]
        assert scene.db.waiting() == left
        scene.note("after")
        always(
            lambda s=scene, rest=[*left, "after"]: s.db.waiting() == rest,
            0.5,
            message="nobody takes it",
        )
        assert scene.app.control.add_consumer("celery", reply=True, timeout=10, limit=1)
    for scene in both:
        goes_on(scene, {"running", "n0", "n1", "after"})
