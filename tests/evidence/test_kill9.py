"""kill -9 of each part of a worker: what it held runs again, soon, in order, and elsewhere once."""

from __future__ import annotations

import pytest

from support.waiting import always, eventually
from support.workers.kills import RESERVED, RUNNING, fill, recovered_by_its_neighbour


@pytest.mark.parametrize(
    ("pool", "how"), [("prefork", "kill9_main"), ("threads", "kill9_all"), ("gevent", "kill9_all")]
)
def test_a_worker_that_is_killed_otherwise_is_recovered(worker, shop, ledger, db, pool, how):
    """Prefork and solo, killed as a whole, are in the core."""
    recovered_by_its_neighbour(worker, shop, ledger, db, pool, how)


def test_a_killed_pool_child_costs_its_job_one_strike_and_its_neighbours_nothing(
    worker, shop, ledger, db
):
    one = worker(concurrency=2)
    owner = fill(shop, db, RUNNING, 5)
    pids = {line["job"]: line["pid"] for line in ledger.lines("started")}
    children = [child.pid for child in one.children()]
    victim, neighbour = RUNNING
    one.kill9_child(children.index(pids[victim]))
    eventually(lambda: ledger.runs()[victim] == 2, message="it runs again")
    assert [row["strikes"] for row in db.counters() if "strikes" in row] == ["1"]
    assert "pool process lost" in db.counters()[0]["history"]
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*RUNNING, *RESERVED})
    assert ledger.runs() == {victim: 2, neighbour: 1, **dict.fromkeys(RESERVED, 1)}
    assert db.owners() == [owner], "the worker itself goes on"
    eventually(lambda: not db.counters(), message="a job that is settled has a clean record")


def test_the_last_worker_is_recovered_at_its_successors_start(worker, shop, ledger, db):
    victim = worker(concurrency=2)
    owner = fill(shop, db, RUNNING, 5)
    victim.kill9_all()
    held = db.held()[owner]
    always(lambda: db.held().get(owner) == held, during=1, message="nobody is there to reap")
    successor = worker(concurrency=2)
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {*RUNNING, *RESERVED})
    assert ledger.runs() == {**dict.fromkeys(RUNNING, 2), **dict.fromkeys(RESERVED, 1)}
    log = successor.log()
    assert log.index("reap: 1 of") < log.index(" ready."), "it looks before it serves"


def test_recovered_jobs_run_before_a_backlog_and_in_their_old_order(worker, shop, ledger, db):
    victim = worker(concurrency=1)
    shop.run("first")
    backlog = [f"b{n}" for n in range(500)]
    with shop.note.app.pool.acquire(block=True) as connection:
        producer = shop.note.app.amqp.Producer(connection)
        for name in backlog:
            shop.note.apply_async((name,), producer=producer)
    held = eventually(lambda: [jobs for jobs in db.held().values() if len(jobs) >= 4])[0]
    assert held == ["first", *backlog[: len(held) - 1]]
    victim.die()

    ledger.clear()
    ledger.release("first")
    worker(concurrency=1)
    eventually(lambda: len(ledger.lines("started")) > 50)
    order = [line["job"] for line in ledger.lines("started")]
    assert order == ["first", *backlog][: len(order)]
