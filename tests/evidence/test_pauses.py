"""A queue is paused and resumed for all workers, whatever happens to them meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from support.waiting import always, eventually

OPTIONS = {"heartbeat_interval": 1, "owner_ttl": 20, "reap_interval": 1}
#: Slots, and how many jobs a worker has at a time.
SLOTS = {"prefork": 2, "threads": 2, "solo": 1, "gevent": 2}
RESERVED = 4
JOBS = [f"job-{n:02}" for n in range(30)]


@pytest.fixture
def start(worker):
    """`start(pool)`: a worker with two queues, and several jobs for each slot."""

    def make(pool: str, **more: Any) -> Any:
        conf = {"worker_prefetch_multiplier": RESERVED}
        how = {"concurrency": SLOTS[pool], "queues": ["celery", "aside"], "conf": conf, **more}
        return worker(pool=pool, options=OPTIONS, **how)

    return make


def send(app: Any, *jobs: str, task: str = "note", queue: str = "celery", **how: Any) -> None:
    for job in jobs:
        app.send_task(f"shop.{task}", (job,), queue=queue, **how)


def pause(cli: Any, queue: str = "celery") -> Any:
    return cli("queue", "pause", queue, "--json", options=OPTIONS).json()


def resume(cli: Any, queue: str = "celery") -> Any:
    return cli("queue", "resume", queue, "--json", options=OPTIONS).json()


@pytest.mark.parametrize("pool", SLOTS)
def test_nothing_starts_until_it_is_resumed_whatever_happens_to_the_workers(
    pool, start, app, db, ledger, cli
):
    one = start(pool)
    if pool == "solo":
        send(app, "first", task="hold")
    else:
        send(app, "first", "other", task="hold")
    eventually(lambda: len(ledger.runs()) == SLOTS[pool])
    send(app, *JOBS)
    eventually(lambda: pool == "solo" or len(db.waiting()) < len(JOBS), message="it reserves some")

    told = pause(cli)
    assert told["new"]
    assert told["workers"] == 1
    if pool == "solo":  # its loop goes round when its job has ended
        ledger.release("first")
    eventually(lambda: db.waiting() == JOBS, message="what was reserved is back, in its order")
    send(app, "later")
    send(app, "scheduled", countdown=0.5)
    send(app, "beside", queue="aside")
    if pool != "solo":
        ledger.release("other")  # a slot is free
    eventually(lambda: "beside" in ledger.finishes(), message="the other queue is served")
    ran = {"first", "beside"} | ({"other"} if pool != "solo" else set())
    eventually(lambda: "scheduled" in db.waiting(), message="it is due, and waits there")
    always(lambda: ledger.runs().keys() == ran, during=2)

    # One job runs on while all workers are killed and started again.
    one.die()
    two = start(pool)
    back = [] if pool == "solo" else ["first"]
    expected = {*back, *JOBS, "later", "scheduled"}
    eventually(lambda: {*db.waiting()} == expected, message="what it held waits there, too")
    always(lambda: ledger.runs().keys() == ran, during=2)
    two.stop()
    three = start(pool)
    always(lambda: ledger.runs().keys() == ran, during=2)

    ledger.release()
    resume(cli)
    eventually(lambda: expected <= ledger.finishes().keys())
    runs = ledger.runs()
    assert {job: runs[job] for job in expected - {"first"}} == dict.fromkeys(
        expected - {"first"}, 1
    )
    eventually(db.settled)
    three.stop()


def test_what_is_reserved_starts_where_it_is_not_requeued(start, app, db, ledger, cli):
    start("threads", env={"WITHOUT": "requeues_of_pauses"})
    send(app, "first", "other", task="hold")
    eventually(lambda: len(ledger.runs()) == 2)
    send(app, *JOBS)
    eventually(lambda: len(db.waiting()) < len(JOBS))
    pause(cli)
    always(lambda: "job-00" not in ledger.runs(), during=2)
    ledger.release()
    eventually(lambda: "job-00" in ledger.runs(), message="an operator is surprised")


def test_workers_that_know_no_pauses_go_on(start, app, ledger, cli):
    start("threads", env={"WITHOUT": "paused_queues"})
    pause(cli)
    send(app, *JOBS)
    eventually(lambda: {*JOBS} <= ledger.finishes().keys())


def test_a_suspect_of_a_paused_queue_waits_for_the_end_of_the_pause(
    start, app, shop, db, ledger, cli, suspected
):
    pause(cli)
    suspected(shop.note, "suspect")
    start("threads")
    always(lambda: "suspect" not in ledger.runs() and db.on_probation(), during=3)
    resume(cli)
    eventually(lambda: "suspect" in ledger.finishes())


def test_an_idle_worker_starts_soon_after_the_end_and_did_not_ask_meanwhile(
    start, app, ledger, cli, client
):
    start("prefork", queues=["celery"])
    pause(cli)
    send(app, *JOBS)
    always(lambda: not ledger.runs(), during=2)
    before = client.info("stats")["total_commands_processed"]
    began = client.time()
    always(lambda: not ledger.runs(), during=5, every=0.5)
    seconds = client.time()[0] - began[0]
    sent = client.info("stats")["total_commands_processed"] - before
    # The server counts what scripts call, too: a heartbeat has some fifteen commands. So do the
    # looks of this test, and passes of the reaper.
    print(f"{sent / seconds:.0f} commands a second")
    assert sent / seconds < 150
    resume(cli)
    eventually(lambda: {*JOBS} <= ledger.finishes().keys())
