"""How a job ends: whatever it raises, the worker lives, and the job is not left in flight."""

from __future__ import annotations

import pytest

from support.waiting import eventually


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_task_that_runs_out_of_memory_fails_like_any_other(worker, app, shop, ledger, db, pool):
    """A, B. Celery raises a task's MemoryError once more in the MainProcess. With processes that
    ended the worker, who gave the job back uncounted: to the next, through the whole fleet. With
    threads and greenlets it was in flight, and running, as long as the worker lived."""
    one = worker(app="features", pool=pool, concurrency=1)
    failed = app.send_task("features.memory_error", ("odd",))
    shop.note.delay("behind")
    eventually(lambda: ledger.finishes().get("behind"))
    eventually(db.settled)
    assert one.alive()
    assert ledger.runs()["odd"] == 1
    assert failed.state == "FAILURE"
    assert not db.dead()


def test_the_control_ends_over_it(worker, app, db):
    one = worker(app="features", concurrency=1, superfetch=False)
    app.send_task("features.memory_error", ("odd",))
    one.wait_exit()
    assert db.waiting() == ["odd"], "the next worker is to have it"


#: The result backend is asked once more, and not for 20 s.
IMPATIENT = {
    "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "interval_start": 0}}
}


@pytest.mark.parametrize("end", ["rejected", "revoked", "timed out"])
def test_a_job_whose_end_cannot_be_told_does_not_stay_in_flight(
    worker, app, ledger, db, fresh_server, end
):
    """B. Celery tells the result backend first, and raises if that is away. The job has ended: it
    counted as running, and against the prefetch, as long as the worker lived."""
    results = fresh_server()
    pool = "gevent" if end == "timed out" else "prefork"
    worker(app="features", pool=pool, concurrency=1, result_url=results.url(), conf=IMPATIENT)
    results.close()
    limits = {"time_limit": 1} if end == "timed out" else {}
    if end == "rejected":
        job = app.send_task("features.reject", ("odd", False))
    else:
        job = app.send_task("shop.hold", ("odd",), **limits)
    eventually(lambda: ledger.starts().get("odd"))
    if end == "revoked":
        app.control.revoke(job.id, terminate=True)
    if end == "timed out":  # nobody knows of its failure: it is run again, and that is counted
        eventually(db.dead)
    eventually(db.settled)
    assert not db.running()
    assert ledger.runs()["odd"] == (3 if end == "timed out" else 1)
