"""Stock workers and ours on the same queues: there, side by side, and back again."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, chain
from kombu.transport.redis import Channel

import celery_superfetch
from support.servers.database import name_of
from support.waiting import always, eventually
from support.workers.worker import process_env

RESTORES_AT_ONCE = {
    "visibility_timeout": 1,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


def unacked(client: redis.Redis) -> set[str]:
    """Names of the jobs that stock workers have not acked."""
    values: Any = client.hvals("unacked")
    return {name_of(json.dumps(json.loads(value)[0]).encode()) for value in values}


@contextmanager
def load(*producers: Celery) -> Iterator[list[str]]:
    """Publish all the time, by each producer in turn; the names of what was published."""
    sent: list[str] = []
    over = threading.Event()

    def publish() -> None:
        while not over.wait(0.01):
            name = f"n{len(sent)}"
            producers[len(sent) % len(producers)].tasks["shop.note"].delay(name)
            sent.append(name)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield sent
    finally:
        over.set()
        thread.join()


def test_a_fleet_is_rolled_from_stock_and_what_a_killed_worker_held_is_taken_over(
    worker, make_app, ledger, client, cli
):
    stock, ours = make_app(superfetch=False), make_app()
    first = worker(superfetch=False, pool="threads")
    doomed = worker(superfetch=False, queues=["old"], args=["--prefetch-multiplier=4"])
    kept = ["h0", "h1", *(f"reserved{n}" for n in range(6))]
    for name in kept:
        task = "shop.hold" if name.startswith("h") else "shop.note"
        stock.send_task(task, (name,), queue="old")
    eventually(lambda: set(kept) == unacked(client) and {"h0", "h1"} <= set(ledger.starts()))

    with load(stock, ours) as sent:
        eventually(lambda: len(ledger.finishes()) > 20)
        new = worker(queues=["celery", "old"], pool="threads")
        beside = len(sent)
        eventually(lambda: len(ledger.finishes()) > beside + 20, message="both kinds run")
        first.stop()
        alone = len(sent)
        eventually(lambda: len(ledger.finishes()) > alone + 20)
    eventually(lambda: set(sent) <= set(ledger.finishes()))
    assert {name: ledger.runs()[name] for name in sent} == dict.fromkeys(sent, 1)

    # A stock worker holds jobs. Its connection shows it, although its prefetch is full and it
    # is in a warm shutdown.
    doomed.term()
    doomed.wait_log("Warm shutdown")
    refused = cli("migrate", code=1)
    assert "nothing was moved. 8 jobs are unacked" in refused.err
    assert unacked(client) == set(kept)
    doomed.die()
    # The control: for an hour nobody would look at them.
    always(lambda: unacked(client) == set(kept), during=1.0)
    assert "Unacked by stock workers: 8 jobs" in cli("status").out
    ledger.release()
    done = cli("migrate", "--json").json()
    assert (done["requeued"], done["queues"], done["left"]) == (8, {"old": 8}, [])
    eventually(lambda: set(kept) <= set(ledger.finishes()))
    # What had been running, as after every kill; nothing else runs again.
    assert {job for job, runs in ledger.runs().items() if runs > 1} == {"h0", "h1"}
    assert max(ledger.runs().values()) == 2
    new.stop()
    assert not client.exists("unacked", "unacked_index", "celery", "old")


def test_what_a_killed_stock_worker_held_for_later_is_taken_over_and_parked(
    worker, make_app, ledger, db, client, cli
):
    stock = make_app(superfetch=False)
    doomed = worker(superfetch=False, pool="threads")
    due = datetime.now(timezone.utc) + timedelta(seconds=15)
    stock.send_task("shop.note", ("soon",), eta=due)
    stock.send_task("shop.note", ("tomorrow",), eta=due + timedelta(days=1))
    eventually(lambda: unacked(client) == {"soon", "tomorrow"})
    doomed.die()
    assert cli("migrate", "--json").json()["requeued"] == 2
    assert not unacked(client)

    worker(pool="threads")
    eventually(lambda: ledger.runs() == {"soon": 1} and db.parked() == ["tomorrow"], 60)
    assert ledger.starts()["soon"][0] >= due.timestamp()


def test_back_to_stock_after_a_kill(worker, shop, ledger, db, client, cli):
    jobs = ["running", "n0", "n1"]
    one = worker(concurrency=1, args=["--prefetch-multiplier=10"])
    shop.run("running")
    shop.note.delay("n0")
    shop.note.delay("n1")
    shop.note.apply_async(("eta",), countdown=3600)
    eventually(lambda: list(db.held().values()) == [jobs] and db.parked() == ["eta"])
    refused = cli("rollback", code=1)
    assert "3 jobs in flight" in refused.err
    assert f"kill -TERM {one.pid}" in refused.err

    one.die()
    worker(superfetch=False, pool="threads", concurrency=1)
    # The control: stock knows nothing of private lists.
    always(lambda: ledger.runs() == {"running": 1}, during=1.0)
    ledger.release()
    done = cli("rollback", "--json").json()
    assert (done["requeued"], done["queues"], done["in_flight"]) == (4, {"celery": 4}, 0)
    eventually(lambda: set(ledger.finishes()) == {"running", "n0", "n1"})
    eventually(lambda: unacked(client) == {"eta"})
    assert list(ledger.starts()) == ["running", "n0", "n1"]
    assert ledger.runs() == {"running": 2, "n0": 1, "n1": 1}
    assert not db.private_lists()
    assert not db.parked()


@pytest.mark.skipif(
    "unacked_restore_interval" not in Channel.from_transport_options,
    reason="this kombu restores every 100 s only",
)
def test_side_by_side_stock_restores_its_own_long_jobs_and_never_ours(
    worker, app, ledger, db, client
):
    restoring = {"broker_transport_options": RESTORES_AT_ONCE}
    worker(
        superfetch=False,
        conf=restoring,
        queues=["old", "both"],
        pool="threads",
        concurrency=1,
        args=["--prefetch-multiplier=1"],
    )
    app.send_task("shop.hold", ("stock's",), queue="old")
    eventually(lambda: unacked(client) == {"stock's"})
    worker(queues=["new"], pool="threads", concurrency=1)
    app.send_task("shop.hold", ("ours",), queue="new")
    eventually(lambda: db.owner_of("ours"))
    # The control: the stock job passes its visibility timeout, and is on its queue again.
    eventually(lambda: "stock's" in db.waiting("old"))
    assert db.owner_of("ours")
    assert db.length("new") == 0
    worker(queues=["old"], pool="threads", concurrency=1)
    eventually(lambda: ledger.runs() == {"stock's": 2, "ours": 1})
    always(lambda: ledger.runs() == {"stock's": 2, "ours": 1}, during=1.0)


def test_a_worker_whose_package_is_upgraded_beneath_it_stops_by_its_own_scripts(
    worker, app, shop, ledger, db, tmp_path
):
    """`pip install -U`, and then a restart: those of the new version may mean other things."""
    site, package = tmp_path / "site", Path(celery_superfetch.__file__).parent
    shutil.copytree(package, site / package.name)
    paths = os.pathsep.join([str(site), process_env({})["PYTHONPATH"]])
    old = worker(concurrency=1, env={"PYTHONPATH": paths})
    chain(shop.hold.si("running"), shop.note.si("next"), app=app).apply_async()
    eventually(ledger.starts)
    waiting = [f"n{n}" for n in range(3)]
    for name in waiting:
        shop.hold.delay(name)
    eventually(lambda: sum(map(len, db.held().values())) == 4)
    for script in (site / package.name).rglob("*.lua"):
        script.write_text("return redis.error_reply('of another version')")
    old.term()
    eventually(lambda: db.waiting() == waiting, message="what waits goes back")
    ledger.release()
    old.wait_exit()
    assert db.waiting() == [*waiting, "next"], "and its pool has handed on"
    assert not db.private_lists()
    assert not db.owners()
