"""A job that lost only its own processes runs like any other: its next loss is its own, too."""

from __future__ import annotations

import pytest

from celery_superfetch.model.job import digest
from support.waiting import always, eventually

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 2}
LOSSES = 2  # of three strikes


@pytest.mark.parametrize("without", ["", "own_losses"])
def test_a_child_that_lost_its_process_twice_runs_while_its_parent_waits(
    worker, app, ledger, db, without
):
    """One worker of two slots. The child waited for a worker without other work, and its parent,
    that other work, for the child: for ever. The control: so it is without the rule."""
    app.send_task("families.parent", ("parent", LOSSES))
    worker(app="families", concurrency=2, options=OPTIONS, env={"WITHOUT": without})
    eventually(lambda: len(ledger.starts().get("parent-child", ())) == LOSSES, within=60)
    if without:
        eventually(lambda: db.on_probation() == ["parent-child"])
        always(lambda: ledger.runs()["parent-child"] == LOSSES, during=5, message="it waits")
        return
    eventually(lambda: {"parent", "parent-child"} <= set(ledger.finishes()), within=60)
    assert ledger.runs() == {"parent": 1, "parent-child": LOSSES + 1}
    assert not db.on_probation()
    eventually(lambda: not db.counters(), message="settled, they are innocent")


@pytest.mark.parametrize(("without", "runs"), [("", 1), ("last_strikes_alone", 2)])
def test_where_a_crash_ends_all_jobs_it_runs_alone_before_its_last_strike(
    worker, shop, ledger, db, client, without, runs
):
    """It lost a process of its own on prefork, and is claimed by a pool of threads then. The
    control: alongside another job its loss is a suspect strike, so that it runs once too often."""
    options = {**OPTIONS, "strike_limit": 2}
    settings = {"pool": "threads", "concurrency": 2, "options": options}
    shop.kill_child.apply_async(("killer",), queue="aside")
    raw = client.rpop("aside")
    client.hset(f"superfetch:history:{digest(raw)}", mapping={"strikes": 1, "recoveries": 1})
    client.set("superfetch:has_history", 1)
    one = worker(**settings, env={"WITHOUT": without})
    shop.run("other")
    client.lpush("celery", raw)
    if not without:
        eventually(lambda: client.llen("superfetch:probation:celery") == 1)
        ledger.release()
    one.wait_exit()
    eventually(lambda: ledger.runs()["killer"] == 1)
    ledger.release()
    for _ in range(runs):
        two = worker(**settings, ready=False)
        eventually(lambda two=two: db.dead() or not two.alive(), 60)
    assert [record["strikes"] for record in db.dead()] == [2]
    assert ledger.runs()["killer"] == runs
