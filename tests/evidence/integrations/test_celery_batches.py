"""F8. celery-batches hands many jobs to the pool as one: a lost child loses them all at once."""

from __future__ import annotations

import pytest
from celery import Celery

from support.waiting import always, eventually

pytest.importorskip("celery_batches", reason="celery-batches is not installed")


def send(app: Celery, *jobs: str) -> None:
    for job in jobs:
        app.send_task("batched.batch", [job])


def test_the_calls_of_a_lost_batch_run_again_when_their_worker_has_ended(worker, app, db, ledger):
    one = worker(app="batched")
    send(app, "accident", "a", "b")
    one.wait_log("exited with 'signal 9 (SIGKILL)'")
    always(lambda: [len(jobs) for jobs in db.held().values()] == [3], 2.0)
    send(app, "c", "d", "e")
    eventually(lambda: {*ledger.finishes()} == {*"cde"}, message="others go on meanwhile")
    one.stop()
    other = worker(app="batched")
    eventually(lambda: {*ledger.finishes()} == {"accident", *"abcde"})
    eventually(lambda: not any(db.held().values()))
    assert [ledger.runs()[job] for job in ("accident", "a", "b")] == [2, 2, 2]
    assert "strike 1" not in one.log() + other.log()
