"""A job with early ack runs once though its worker is killed: its ack is sent as it begins."""

from __future__ import annotations

import pytest

from support.waiting import eventually


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_it_runs_once_though_its_worker_is_killed(worker, app, ledger, db, pool):
    """On solo the job blocks the thread that sends acks: the ack must not wait for its end."""
    one = worker(app="early", pool=pool, concurrency=1)
    app.send_task("early.choice", ("job",))
    eventually(lambda: "job" in ledger.starts())
    eventually(lambda: not any(db.held().values()), message="its ack has arrived")
    one.die()
    worker(app="early", pool=pool, concurrency=1)
    app.send_task("shop.note", ("next",))  # behind what would be recovered
    eventually(lambda: "next" in ledger.finishes())
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == {"job": 1, "next": 1}
