"""Pool processes that load slowly: a job is for a process that is up, and has not begun before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.waiting import eventually

#: A start permit of 1.5 s: a load, or an end, takes twice as long.
OPTIONS = {"heartbeat_interval": 1}
SLOW = {"HAPPENS": "slow_loads", "LOAD_S": "3"}
CONF = {"worker_proc_alive_timeout": 60}

#: Queue -> what its worker has besides.
WORKERS: dict[str, tuple[list[str], dict[str, str]]] = {
    "tasks": (["--max-tasks-per-child=1"], SLOW),
    "memory": (["--max-memory-per-child=1"], SLOW),
    "ends": (["--max-tasks-per-child=1"], {**SLOW, "LOAD_S": "0", "END_S": "3"}),
    "control": (["--max-tasks-per-child=1"], {**SLOW, "WITHOUT": "pool_slots"}),
}


def test_each_job_runs_once_although_each_needs_a_process_that_loads(worker, app, ledger, db):
    """Such a worker ran 0 to 3 of 6 jobs in two minutes with 24 loads (stock 6 in 41 s with 7):
    their permits expired in the pool, and what was not begun counted as a task of its process."""
    jobs = {queue: [f"{queue}-{n}" for n in range(6)] for queue in WORKERS}
    for queue, (args, env) in WORKERS.items():
        for job in jobs[queue]:
            app.tasks["shop.note"].apply_async((job,), queue=queue)
        worker(queues=[queue], args=args, env=env, options=OPTIONS, conf=CONF, ready=False)
    ours = {job for queue in jobs if queue != "control" for job in jobs[queue]}
    eventually(lambda: ours <= set(ledger.finishes()), within=90)
    assert not {*jobs["control"]} <= set(ledger.finishes()), "the control"
    eventually(lambda: not ours & {job for held in db.held().values() for job in held})
    assert {ledger.runs()[job] for job in ours} == {1}
    assert not db.counters()
    # Six of each, and those that wait for the next job.
    pids = {line["pid"] for line in ledger.lines("started") if line["job"] in ours}
    assert len(pids) == len(ours), "each ran in a process of its own"


@pytest.mark.parametrize("without", ["", "pool_slots"], ids=["here", "the control"])
def test_a_job_gets_no_strike_before_a_process_that_is_up_has_it(
    worker, app, ledger, db, tmp_path, without
):
    """Its worker was killed while the processes loaded, three times: 0 runs, and in the dead set.
    The control gives it a strike at the first death."""
    loading = tmp_path / "loading"
    loading.touch()
    harm = "slow_children,short_waits"
    env = {"HAPPENS": harm, "NO_CHILDREN": str(loading), "WITHOUT": without}
    settings: dict[str, Any] = {"env": env, "options": {"strike_limit": 1}, "ready": False}
    app.tasks["shop.note"].delay("job")
    for _ in range(1 if without else 3):
        one = worker(**settings)
        eventually(lambda: [*db.held().values()] == [["job"]])
        if without:
            eventually(lambda: db.running() == ["job"])
        one.die()
    last = worker(**settings)
    if without:
        eventually(db.dead)
        return
    last.wait_log("wait for a pool process")
    assert db.running() == []
    loading.unlink()
    eventually(lambda: ledger.finishes().get("job"))
    eventually(db.settled)
    assert ledger.runs() == {"job": 1}
    assert not db.dead()
    assert last.log().count("wait for a pool process") == 1


def test_a_suspect_gets_no_strike_before_a_process_that_is_up_has_it(
    worker, shop, ledger, db, suspected, tmp_path
):
    """It is claimed as if it ran, since it may kill the worker that decodes it."""
    loading = tmp_path / "loading"
    loading.touch()
    env = {"HAPPENS": "slow_children", "NO_CHILDREN": str(loading)}
    suspected(shop.note, "job")
    before = [counters.get("strikes") for counters in db.counters()]
    for _ in range(3):
        one = worker(env=env, ready=False)
        eventually(lambda: [*db.held().values()] == [["job"]])
        eventually(lambda: not db.running(), message="it waits for a process")
        assert [counters.get("strikes") for counters in db.counters()] == before
        one.die()
    loading.unlink()
    worker(env=env)
    eventually(lambda: ledger.finishes().get("job"))
    eventually(db.settled)
    assert ledger.runs() == {"job": 1}
    assert not db.dead()


def test_jobs_that_wait_for_a_process_keep_their_order_where_a_suspect_runs_alone(
    worker, app, ledger, db, suspected, tmp_path
):
    """Each was requeued by itself, the newest last, to the front of the queue: in a storm jobs that
    were sent 80 s later overtook them."""
    loading = tmp_path / "loading"
    loading.touch()
    env = {"HAPPENS": "slow_children", "NO_CHILDREN": str(loading)}
    names = [f"job-{n}" for n in range(6)]
    for name in names:
        app.tasks["shop.note"].delay(name)
    worker(concurrency=2, env=env, options=OPTIONS, conf=CONF, ready=False)
    eventually(lambda: [sorted(held) for held in db.held().values()] == [names])
    suspected(app.tasks["shop.note"], "suspect")
    eventually(lambda: [*db.held().values()] == [["suspect"]])
    eventually(lambda: db.length() == len(names))
    assert db.waiting() == names
    loading.unlink()
    eventually(lambda: {*names, "suspect"} <= set(ledger.finishes()))
    assert set(ledger.runs().values()) == {1}
    eventually(db.settled)


def test_a_slot_is_used_as_soon_as_its_process_is_up(worker, app, ledger, db, tmp_path):
    """One process is up and others load: jobs go to that one, and none waits for the others."""
    loading = tmp_path / "loading"
    env = {"HAPPENS": "slow_children", "NO_CHILDREN": str(loading)}
    one = worker(concurrency=2, env=env, conf=CONF)
    app.tasks["shop.note"].delay("first")
    eventually(lambda: ledger.finishes().get("first"))
    loading.touch()
    killed = one.kill9_child()
    eventually(lambda: [c for c in one.children() if c.pid != killed and len(one.children()) == 2])
    for n in range(20):
        app.tasks["shop.note"].delay(f"job-{n}")
    eventually(lambda: len(ledger.finishes()) == 21, message="by the process that is up")
    eventually(db.settled)
    assert set(ledger.runs().values()) == {1}
    assert len({line["pid"] for line in ledger.lines("started")[1:]}) == 1
    Path(loading).unlink()


#: Queue -> what its worker has besides.
CHURN = {"commands": [], "autoscale": ["--autoscale=6,1"]}


@pytest.mark.parametrize("without", ["", "pool_slots"], ids=["here", "the control"])
def test_a_pool_that_shrinks_ends_no_process_that_was_given_a_job(worker, app, ledger, db, without):
    """A minute of ``pool_grow`` and ``pool_shrink``: 27 of 2,460 jobs were in the dead set at a
    limit of one strike, by autoscale 1 of 1,880 (stock loses none, and runs some twice)."""
    env = {"AUTOSCALE_KEEPALIVE": "0.05", "WITHOUT": without}
    settings: dict[str, Any] = {"env": env, "options": {"strike_limit": 1}, "concurrency": 3}
    workers = {queue: worker(queues=[queue], args=CHURN[queue], **settings) for queue in CHURN}
    jobs: dict[str, list[str]] = {queue: [] for queue in CHURN}

    def churn() -> bool:
        for queue in CHURN:
            if not db.length(queue):
                jobs[queue] += (new := [f"{queue}-{len(jobs[queue]) + n}" for n in range(10)])
                for job in new:
                    app.tasks["shop.note"].apply_async((job,), queue=queue)
        app.control.pool_grow(2, destination=names)
        app.control.pool_shrink(2, destination=names)
        return bool(db.dead()) if without else min(map(len, jobs.values())) >= 300

    replies = app.control.ping(timeout=10, limit=len(CHURN))
    names = [name for reply in replies for name in reply if workers["commands"].name in name]
    eventually(churn, within=90)
    if without:
        return
    ours = {job for queue in CHURN for job in jobs[queue]}
    eventually(lambda: ours <= set(ledger.finishes()), message="no job is lost")
    eventually(db.settled)
    assert set(ledger.runs().values()) == {1}
    assert not db.dead()
    assert not db.counters()
    assert all(one.alive() for one in workers.values())
