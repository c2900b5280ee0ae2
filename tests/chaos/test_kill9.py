"""kill -9 of each part of a worker: what it held runs again, soon, in order, and elsewhere once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import always, eventually

RUNNING = ["r0", "r1"]
RESERVED = [f"n{n}" for n in range(6)]


def fill(shop: SimpleNamespace, ledger: Ledger, db: Database, running: list[str]) -> str:
    """One worker runs `running` and has reserved six more; its owner."""
    for name in running:
        shop.hold.delay(name)
    eventually(lambda: set(ledger.starts()) == set(running))
    for name in RESERVED:
        shop.note.delay(name)
    eventually(lambda: sum(map(len, db.held().values())) >= len(running) + 3)
    return db.owner_of(running[0])


@pytest.mark.parametrize("how", ["kill9_all", "kill9_main"])
def test_a_killed_workers_jobs_run_on_its_neighbour(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, how: str
) -> None:
    victim = worker(concurrency=2)
    owner = fill(shop, ledger, db, RUNNING)
    worker(concurrency=2)
    getattr(victim, how)()
    eventually(lambda: all(ledger.runs()[name] == 2 for name in RUNNING), message="they run again")
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*RUNNING, *RESERVED})
    assert ledger.runs() == {**dict.fromkeys(RUNNING, 2), **dict.fromkeys(RESERVED, 1)}
    assert db.fact(owner, "state") == "reaped"
    eventually(lambda: not db.private_lists() and not db.counters(), message="all is settled")


def test_a_killed_pool_child_costs_its_job_one_strike_and_its_neighbours_nothing(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    one = worker(concurrency=2)
    owner = fill(shop, ledger, db, RUNNING)
    pids = {line["job"]: line["pid"] for line in ledger.lines("started")}
    children = [child.pid for child in one.children()]
    victim, neighbour = RUNNING
    one.kill9_child(children.index(pids[victim]))
    eventually(lambda: ledger.runs()[victim] == 2, message="it runs again")
    assert [row["strikes"] for row in db.counters() if "strikes" in row] == ["1"]
    assert "pool child lost" in db.counters()[0]["history"]
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*RUNNING, *RESERVED})
    assert ledger.runs() == {victim: 2, neighbour: 1, **dict.fromkeys(RESERVED, 1)}
    assert db.owners() == [owner], "the worker itself goes on"
    eventually(lambda: not db.counters(), message="a job that is settled has a clean record")


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_a_worker_of_another_pool_is_recovered(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, pool: str
) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    running = RUNNING[:1] if pool == "solo" else RUNNING
    victim = worker(pool=pool, concurrency=len(running))
    for name in running:
        shop.hold.delay(name)
    eventually(lambda: set(ledger.starts()) == set(running))
    worker(pool=pool, concurrency=len(running))
    victim.kill9_all()
    eventually(lambda: all(ledger.runs()[name] == 2 for name in running), message="they run again")
    ledger.release()
    shop.note.delay("next")
    eventually(lambda: set(ledger.finishes()) == {*running, "next"})
    assert ledger.runs() == {**dict.fromkeys(running, 2), "next": 1}


def test_the_last_worker_is_recovered_at_its_successors_start(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    victim = worker(concurrency=2)
    owner = fill(shop, ledger, db, RUNNING)
    victim.kill9_all()
    held = db.held()[owner]
    always(lambda: db.held().get(owner) == held, during=1, message="nobody is there to reap")
    successor = worker(concurrency=2)
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*RUNNING, *RESERVED})
    assert ledger.runs() == {**dict.fromkeys(RUNNING, 2), **dict.fromkeys(RESERVED, 1)}
    log = successor.log()
    assert log.index("reap: 1 of") < log.index(" ready."), "it looks before it serves"


def test_recovered_jobs_run_before_a_backlog_and_in_their_old_order(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> None:
    victim = worker(concurrency=1)
    shop.hold.delay("first")
    eventually(lambda: ledger.starts())
    backlog = [f"b{n}" for n in range(500)]
    with shop.note.app.pool.acquire(block=True) as connection:
        producer = shop.note.app.amqp.Producer(connection)
        for name in backlog:
            shop.note.apply_async((name,), producer=producer)
    held = eventually(lambda: [jobs for jobs in db.held().values() if len(jobs) >= 4])[0]
    assert held == ["first", *backlog[: len(held) - 1]]
    victim.kill9_all()
    victim.wait_gone()

    ledger.clear()
    ledger.release("first")
    worker(concurrency=1)
    eventually(lambda: len(ledger.lines("started")) > 50)
    order = [line["job"] for line in ledger.lines("started")]
    assert order == ["first", *backlog][: len(order)]
