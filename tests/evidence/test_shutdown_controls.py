"""What becomes of the jobs without us: stock, and our workers with the mechanism taken out."""

from __future__ import annotations

import signal

import psutil

from support.waiting import always, eventually
from support.workers.scene import Scene

#: Far longer than it takes to give back what waits, where somebody does.
WAITED = 2.0


def test_stock_keeps_what_waits_to_the_end_and_turns_it_round(scenes):
    (scene,) = scenes("threads", superfetch=False)
    scene.settle()
    scene.tell(signal.SIGTERM)
    scene.worker.wait_log("Warm shutdown")
    claimed = scene.claimed()
    always(lambda: scene.claimed() == claimed, WAITED, message="nothing is given back")
    scene.release()
    scene.worker.wait_exit()
    # Turned round; before Celery 5.7 the threads even run them all.
    assert [n for n in scene.db.waiting() if n in ("n0", "n1", "n2")] != ["n0", "n1", "n2"]


def test_stock_loses_the_running_job_on_solo_and_gevent_when_told_to_quit(scenes):
    lost = scenes("solo", "gevent", superfetch=False)
    for scene in lost:
        scene.worker.wait_ready()
        scene.says(lambda s=scene: "running" in s.ledger.starts(), "the job runs")
        scene.tell(signal.SIGQUIT)
    for scene in lost:
        # Before Celery 5.7 the error that fails the job keeps the solo worker as well.
        scene.worker.wait_log("raised unexpected" if scene.pool == "solo" else "")

        def gone(scene: Scene = scene) -> bool:
            known = [*scene.db.waiting(), *scene.ledger.finishes()]
            return "running" not in known and not scene.claims("running")

        scene.says(gone, "the job is nowhere")
        always(gone, 0.5, message="the job is nowhere")


def test_without_the_stopper_what_waits_is_kept_until_the_job_ends(scenes):
    kept = scenes("solo", "threads", env={"WITHOUT": "stopper"})
    for scene in kept:
        scene.settle()
        scene.tell(signal.SIGTERM)
        scene.says(lambda s=scene: s.db.fact(s.owner, "state") == "stopping", "it is stopping")
    before = [scene.claimed() for scene in kept]
    always(lambda: [s.claimed() for s in kept] == before, WAITED, message="nothing goes back")


def on_its_way(scene: Scene) -> psutil.Process:
    """A job is written to a pool process that has not said yet that it accepts it."""
    scene.worker.wait_ready()
    (child,) = scene.worker.children()
    child.suspend()
    scene.hold("job")
    scene.worker.wait_log("received")
    always(lambda: scene.worker.alive() and not scene.runs(), 0.3, message="it is in the pipe")
    scene.owner = scene.db.owner_of("job")
    scene.tell(signal.SIGTERM)
    scene.worker.wait_log("Warm shutdown")
    return child


def test_a_job_on_its_way_to_the_pool_runs_there_and_nowhere_else(scenes):
    """Celery's pool forgets it at the shutdown, and the process runs it all the same."""
    ours, control = scenes("prefork", jobs=False) + scenes(
        "prefork", jobs=False, env={"WITHOUT": "stopper"}
    )
    on_its_way(ours).resume()
    ours.says(lambda: ours.runs() == {"job": 1}, "it runs")
    ours.release()
    ours.ends(0)
    assert ours.db.waiting() == []
    assert list(ours.ledger.finishes()) == ["job"]

    child = on_its_way(control)
    always(control.worker.alive, 1.5, message="the pool is asked to forget")
    child.resume()
    control.says(lambda: control.runs() == {"job": 1}, "it runs")
    control.release()
    control.says(lambda: "job" in control.ledger.finishes(), "it ends")

    def doubled_or_stuck() -> bool:
        return control.db.waiting() == ["job"] or control.db.owner_of("job") == control.owner

    eventually(doubled_or_stuck, 5, message="nobody acks it")
    always(doubled_or_stuck, 1.0, message="nobody acks it")
