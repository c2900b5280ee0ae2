"""F8. celery-batches hands many jobs to the pool as one: a lost child loses them all at once."""

from __future__ import annotations

import pytest
from celery import Celery
from celery.result import AsyncResult

from support.servers.database import Database
from support.servers.faults import kill_connections
from support.waiting import eventually

pytest.importorskip("celery_batches", reason="celery-batches is not installed")


OPTIONS = {"strike_limit": 2, "heartbeat_interval": 1}


def send(app: Celery, *jobs: str) -> dict[str, AsyncResult]:
    return {job: app.send_task("batched.batch", [job]) for job in jobs}


def settled(db: Database) -> bool:
    return not (db.length() or db.on_probation() or any(db.held().values()))


def test_a_batch_whose_child_was_lost_runs_again(worker, app, db, ledger):
    one = worker(app="batched", options=OPTIONS)
    send(app, "accident", "a", "b")
    eventually(lambda: {*ledger.finishes()} == {"accident", "a", "b"})
    assert [len(runs) for runs in ledger.starts().values()] == [2, 2, 2]
    eventually(lambda: settled(db))
    assert one.log().count("strike 1 of 2") == 3


def test_a_poison_pill_is_killed_and_its_batch_is_not(worker, app, db, ledger):
    """One that shares a batch is no more than suspected: alone, it is found to be innocent."""
    worker(app="batched", options=OPTIONS)
    results = send(app, "a", "pill", "b")
    eventually(lambda: {*ledger.finishes()} == {"a", "b"}, within=60)
    eventually(lambda: results["pill"].state == "FAILURE", within=60)
    assert type(results["pill"].result).__name__ == "PoisonPill"
    eventually(lambda: settled(db))
    assert [ledger.runs()[job] for job in ("a", "pill", "b")] == [2, 2, 2]
    send(app, "c", "d", "e")
    eventually(lambda: {*"cde"} <= {*ledger.finishes()})


def test_a_pill_on_probation_shares_no_batch_with_those_that_come_meanwhile(
    worker, app, db, ledger
):
    worker(app="batched", options=OPTIONS)
    pill = send(app, "a", "pill", "b")["pill"]
    innocent = ["a", "b"]

    def killed_while_others_come() -> bool:
        innocent.append(f"job {len(innocent)}")
        send(app, innocent[-1])
        return bool(pill.state == "FAILURE")

    eventually(killed_while_others_come, within=60, every=0.2)
    eventually(lambda: {*ledger.finishes()} == {*innocent}, within=60)
    again = {job for job, runs in ledger.starts().items() if len(runs) > 1}
    assert {"pill"} <= again <= {"a", "b", "pill", "job 2"}, "only what was in its first batch"


def test_a_batch_beyond_the_hard_time_limit_has_failed(worker, app, db, ledger):
    worker(app="batched", options=OPTIONS, conf={"task_time_limit": 3})
    results = send(app, "a", "idler", "b")
    eventually(lambda: {one.state for one in results.values()} == {"FAILURE"})
    eventually(lambda: settled(db))
    assert ledger.runs()["idler"] == 1


def test_a_batch_that_outlived_its_connection_and_is_lost_counts_against_nobody(
    worker, app, db, ledger, client
):
    """Its calls went back when the connection was lost: they are others by now."""
    one = worker(app="batched", options=OPTIONS, concurrency=1)
    send(app, "idler", "a", "b")
    eventually(lambda: len(ledger.starts()) == 3)
    kill_connections(client)
    eventually(lambda: one.log().count("Connected to") > 1)
    eventually(lambda: len(db.held().get(db.owners()[0], [])) == 3)
    one.kill9_child()
    eventually(lambda: [len(runs) for runs in ledger.starts().values()] == [2, 2, 2])
    assert "strike 1" not in one.log()
    assert not any(row.keys() & {"strikes", "recoveries"} for row in db.counters())
