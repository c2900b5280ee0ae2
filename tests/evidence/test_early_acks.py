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


def test_on_solo_a_later_job_of_a_claim_runs_once_too(worker, app, ledger, db):
    """Only the first ack of a process was sent as its job began. That of a later job, which is not
    the last of its claim, waited for up to a second: a kill meanwhile ran the job twice."""
    jobs = ["one", "job", "later"]
    for job in jobs:
        app.send_task("early.choice", (job,))
    one = worker(app="early", pool="solo")
    eventually(lambda: "one" in ledger.starts())
    ledger.release("one")
    eventually(lambda: "job" in ledger.starts(), every=0.005)
    one.die()
    ledger.release()
    worker(app="early", pool="solo")
    eventually(lambda: "later" in ledger.finishes())
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == dict.fromkeys(jobs, 1)
