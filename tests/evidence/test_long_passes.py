"""A pass that takes long keeps nobody else waiting: scheduled jobs, and the jobs of other dead."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery

from support.waiting import eventually
from support.workers.bench import Bench, ended_process, payload

BUSY = {"reap_interval": 1, "heartbeat_interval": 0.5}
MANY = 1500


def a_long_pass(worker: Any, app: Celery, client: redis.Redis, without: str = "") -> str:
    """A worker recovers the many jobs of a dead one; meanwhile a job becomes due, and another
    worker dies. Returns the key of the many."""
    worker(
        pool="threads",
        options=BUSY,
        env={"HAPPENS": "slow_recoveries", "WITHOUT": without},
    )
    app.send_task("shop.note", ("due",), countdown=6)
    eventually(lambda: client.zcard("superfetch:parked:celery") == 1)
    bench = Bench(client)
    dead = bench.owner(ended_process(), lists=["nobodys"], register=False)
    bench.give(dead, "nobodys", [payload(n) for n in range(MANY)])
    bench.registry.register(dead)
    eventually(lambda: client.llen("nobodys") > 0, message="the pass is under way")
    app.send_task("shop.note", ("orphan",), queue="aside")
    orphan = eventually(lambda: client.rpop("aside"))
    bench.dead_owner([orphan], "celery", lists=["celery"])
    return str(bench.keys.private(dead.owner))


def test_what_is_due_and_what_others_left_runs_during_a_long_pass(worker, app, client, ledger):
    many = a_long_pass(worker, app, client)
    eventually(lambda: {"due", "orphan"} <= ledger.finishes().keys(), within=60)
    assert client.exists(many), "the pass goes on"
    eventually(lambda: not client.exists(many), within=120)
    assert client.llen("nobodys") == MANY, "in the end all are back"
    assert ledger.runs() == {"due": 1, "orphan": 1}


def test_the_control_waits_for_the_end_of_the_pass(worker, app, client, ledger):
    many = a_long_pass(worker, app, client, without="turns_of_their_own")

    ran_early: list[bool] = []

    def over() -> bool:
        ran_early.append(bool(ledger.starts()) and bool(client.exists(many)))
        return not client.exists(many)

    eventually(over, within=120, every=0.2)
    assert not any(ran_early)
