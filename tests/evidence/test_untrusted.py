"""Objects of the user: what tasks raise cannot be printed, asked, pickled or unpickled; and request
classes of the user raise while a job is settled. No job keeps a slot, no worker ends, each loop
ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.servers.database import Database
from support.waiting import always, eventually
from support.workers.untrusted import RAISED

POOLS = ("prefork", "threads", "solo", "gevent")
GOOD = [f"good {n}" for n in range(20)]
UNPRINTABLE = [f"unprintable {n}" for n in range(10)]


def result_of(db: Database, id: str) -> dict[str, Any]:
    """A stored result as it is: an exception in it is not made again."""
    raw = db.client.get(f"celery-task-meta-{id}")
    found: dict[str, Any] = json.loads(raw) if raw else {"status": "PENDING"}
    return found


def is_quiet(db: Database) -> bool:
    """Whether no job waits, runs, or is on probation; asked twice, since a job moves meanwhile."""
    return not any(
        db.length() or db.private_lists() or db.keys("superfetch:probation*") for _ in range(2)
    )


def send_good(app: Any) -> None:
    for job in GOOD:
        app.send_task("shop.note", (job,))


@pytest.mark.parametrize("pool", POOLS)
def test_what_a_task_raises_is_its_failure_and_costs_no_slot(worker, app, ledger, db, pool):
    """Of ten jobs whose exception could not be printed eight stayed in flight for ever, and no good
    one ran; a reason that could not be unpickled ended worker after worker."""
    one = worker(app="untrusted", pool=pool)
    sent = {job: app.send_task("untrusted.raises", ("str raises", job)).id for job in UNPRINTABLE}
    for kind in RAISED:
        sent[kind] = app.send_task("untrusted.raises", (kind, kind)).id
    retried = app.send_task("untrusted.retries", ("retried",)).id
    returned = app.send_task("untrusted.returns", ("returned",)).id
    exited = app.send_task("untrusted.exits", ("exited",)).id
    send_good(app)
    eventually(lambda: set(GOOD) <= set(ledger.finishes()), within=60, message=one.tail())
    eventually(lambda: is_quiet(db), within=60)
    assert one.alive()
    runs, dead = ledger.runs(), {record["task_id"]: record["reason"] for record in db.dead()}
    for job in UNPRINTABLE:
        assert result_of(db, sent[job])["status"] == "FAILURE", job
        assert runs[job] == 1, job
    for kind, (_, end) in RAISED.items():
        result = result_of(db, sent[kind])
        if end == "a strike":
            assert (runs[kind], result["result"]["exc_type"]) == (3, "PoisonPill"), kind
            assert len(dead.pop(sent[kind])) < 600, kind
        else:
            assert (runs[kind], result["status"] in end) == (1, True), (kind, result)
    assert dead.keys() == {exited}
    assert runs["exited"] == 3
    assert (result_of(db, retried)["status"], runs["retried"]) == ("SUCCESS", 2)
    assert runs["returned"] == 1
    assert result_of(db, returned)["status"] == "FAILURE", "no serializer takes it"


BAD_REASONS = ["reject: cannot be unpickled", "ignore: cannot be unpickled"]


@pytest.mark.parametrize("kind", BAD_REASONS)
def test_the_control_a_reason_as_it_is_ends_the_worker(worker, app, kind):
    one = worker(app="untrusted", env={"WITHOUT": "plain_outcomes,bad_messages"})
    app.send_task("untrusted.raises", (kind, kind))
    one.wait_log("Unrecoverable error")


def test_what_a_pool_process_sends_in_vain_ends_that_process_alone(worker, app, shop, ledger, db):
    """The second line of defence, where a result comes as it is after all."""
    one = worker(app="untrusted", env={"WITHOUT": "plain_outcomes"})
    for kind in BAD_REASONS:
        app.send_task("untrusted.raises", (kind, kind))
    eventually(lambda: len(db.dead()) == len(BAD_REASONS))
    assert ledger.runs() == dict.fromkeys(BAD_REASONS, 3)
    shop.ran("good")
    eventually(lambda: is_quiet(db))
    assert one.alive()
    assert one.log().count("sent a result that cannot be unpickled") == 3 * len(BAD_REASONS)


@pytest.mark.parametrize("pool", POOLS)
def test_a_job_that_cannot_be_settled_runs_again_and_its_slots_are_free(
    worker, app, ledger, db, pool
):
    """It stayed in flight for as long as its worker lived."""
    one = worker(app="untrusted", pool=pool, env={"HAPPENS": "unsettled"})
    never = {app.send_task("shop.note", (f"never {n}",)).id: f"never {n}" for n in range(10)}
    app.send_task("shop.note", ("once",))
    settles = "untrusted.settles"
    never[app.send_task(settles, ("on_failure", "never fails")).id] = "never fails"
    fails_twice = app.send_task(settles, ("on_failure once", "fails once")).id
    app.send_task(settles, ("on_accepted", "begins"))
    app.send_task("untrusted.settles_early", ("on_accepted", "begins early"))
    send_good(app)
    eventually(lambda: set(GOOD) <= set(ledger.finishes()), within=60, message=one.tail())
    eventually(lambda: is_quiet(db), within=60)
    assert one.alive()
    runs = ledger.runs()
    assert {job: runs.pop(job) for job in never.values()} == dict.fromkeys(never.values(), 3)
    assert {runs.pop("once"), runs.pop("fails once")} == {2}
    assert set(runs.values()) == {1}
    assert result_of(db, fails_twice)["status"] == "FAILURE"
    dead = {record["task_id"]: record["reason"] for record in db.dead()}
    assert dead.keys() == never.keys()
    kinds = {why.partition(" (")[0] for why in dead.values()}
    assert kinds == {"its outcome could not be recorded: Unprintable", "it raised ValueError"}
    assert one.log().count("ended, but its outcome could not be recorded") == 31


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_the_control_else_they_keep_their_slots(worker, app, ledger, pool):
    env = {"HAPPENS": "unsettled", "WITHOUT": "freed_slots"}
    worker(app="untrusted", pool=pool, env=env)
    for number in range(10):
        app.send_task("shop.note", (f"never {number}",))
    eventually(lambda: len(ledger.runs()) == 8, message="as many as may be claimed")
    send_good(app)
    always(lambda: not set(GOOD) & set(ledger.starts()), during=3)
