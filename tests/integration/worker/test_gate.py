"""What stands before a worker's pool: what it says of itself, and how runs end.

`tests/evidence` has whole workers that freeze, are killed, and are short of something."""

from __future__ import annotations

import time
from typing import Any

import kombu
import pytest
import redis
from celery import signals

from celery_superfetch.model.config import ANNOUNCE_TASK
from celery_superfetch.model.process import start_time
from celery_superfetch.store.runs import FAILED, SUCCEEDED, Runs
from celery_superfetch.worker import gate as gate_module
from celery_superfetch.worker.gate import sleep_until
from celery_superfetch.worker.request import LeasedRequest
from celery_superfetch.worker.settling import call_back
from support.waiting import always, eventually
from support.workers.inside import HERE, at_rest, owner_of

QUEUE = "celery"


def add(a: int, b: int = 0) -> int:
    return a + b


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_how_a_run_ended_is_counted_and_its_slot_is_free_again(started, shop, bench, pool):
    gate, began = started(pool), time.monotonic()
    assert shop.add.delay(1, 2).get(timeout=30) == 3
    with pytest.raises(ValueError, match="on purpose"):
        shop.fail.delay("a").get(timeout=30)
    eventually(lambda: at_rest(gate))
    gate.run_counts.count(bench.database)
    counts = Runs(bench.database).counts()
    assert counts.ends == {(SUCCEEDED, QUEUE, "shop.add"): 1, (FAILED, QUEUE, "shop.fail"): 1}
    for times in counts.times.values():
        assert 0 < times.seconds < time.monotonic() - began


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_what_a_worker_says_of_itself(started, pool):
    gate = started(pool, 2)
    processes = gate.worker.pool._pool._pool if pool == "prefork" else []
    assert list(gate.pids()) == sorted((child.pid, start_time(child.pid)) for child in processes)
    assert gate.slots == 2
    assert gate.node == gate.worker.hostname


def test_workers_with_other_tasks_can_be_told_apart(started, workers):
    said = []
    for more in ([], [], [add]):
        said.append(started("threads", 1, *more).tasks)
        workers.close()  # workers of one process share a loop
    assert said[0] == said[1] != said[2]
    assert {len(tasks) for tasks in said} == {12}


@pytest.mark.parametrize("pool", HERE)
def test_a_loop_vouches_for_itself_unless_a_job_may_keep_it(workers, started, shop, ledger, pool):
    gate = started(pool)
    shop.run("a")
    if pool == "solo":
        always(lambda: gate.tick_count() == 0, during=0.1)
    else:
        turns = gate.tick_count()
        eventually(lambda: gate.tick_count() > turns)
    ledger.release("a")
    eventually(lambda: gate.tick_count())
    workers.close()
    assert gate.tick_count() == 0, "one that ended vouches for nothing"
    gate.on_tick()
    assert gate.tick_count() == 1


def test_what_fails_for_good_ends_the_loop_at_its_next_turn(started):
    gate = started()
    gate.on_tick()
    gate.failure = RuntimeError("on purpose")
    with pytest.raises(RuntimeError, match="on purpose"):
        gate.on_tick()
    gate.failure = None


def test_only_notices_wait_for_a_result_backend_that_hangs(started, monkeypatch):
    gate = started()
    owner = owner_of(gate)
    assert gate.not_before(ANNOUNCE_TASK, owner) == 0
    assert gate.not_before("shop.add", owner) == 0
    monkeypatch.setattr(gate.notice, "_held_off", True)
    monkeypatch.setattr(gate.notice, "_looked", time.monotonic())
    assert gate.not_before(ANNOUNCE_TASK, owner) > time.time()
    assert gate.not_before("shop.add", owner) == 0


def test_what_runs_can_be_asked_for_its_end(started, shop):
    """By which Celery ends it, if it is revoked."""
    gate = started("prefork")
    shop.run("a")
    [running] = gate.out
    assert running._apply_result().terminate


def test_what_its_pool_has_forgotten_goes_back(started, shop, monkeypatch):
    gate, back = started("prefork"), []
    shop.run("a")
    [running] = gate.out
    monkeypatch.setattr(running.delivery, "requeue", lambda: back.append("a"))
    gate.requeue(object())
    assert (gate.out, back) == ({running}, [])
    gate.requeue(running)
    assert (gate.out, back) == (set(), ["a"])


def test_a_soft_time_limit_is_not_the_end_of_a_job(started, shop):
    gate, told = started("prefork"), []
    shop.run("a")
    [running] = gate.out
    call_back(running, told.append, "its soft limit", is_end=False)
    assert told == ["its soft limit"]
    assert gate.out == {running}
    call_back(running, told.append, "the end")
    assert told[1:] == ["the end"]
    assert not gate.out


@pytest.mark.parametrize("pool", HERE)
def test_that_the_server_is_away_is_the_consumers_to_hear(
    started, shop, ledger, db, monkeypatch, pool
):
    """Its consumer connects again, and claims the job that had not begun; that is not its fault."""
    gate = started(pool)
    revoked = LeasedRequest.revoked

    def away(request: Any) -> None:
        monkeypatch.setattr(LeasedRequest, "revoked", revoked)
        raise redis.ConnectionError("away")

    monkeypatch.setattr(LeasedRequest, "revoked", away)
    shop.note.delay("a")
    eventually(lambda: "a" in ledger.finishes())
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1}
    assert not db.dead()


def test_a_job_that_cannot_be_sent_to_a_process_is_put_aside_and_its_slot_is_free(
    started, shop, ledger, db, monkeypatch, caplog
):
    gate = started("prefork")
    hand = gate.pool.apply_async

    def refused(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(gate.pool, "apply_async", hand)
        raise ValueError("not this one")

    monkeypatch.setattr(gate_module, "drop_unsendable", lambda *_: True)
    monkeypatch.setattr(gate.pool, "apply_async", refused)
    shop.note.delay("a")
    eventually(lambda: len(db.dead()) == 1)
    why = db.dead()[0]["reason"]
    assert why.startswith("cannot be received: ValueError (worker/test_gate.py, line ")
    assert "not this one" not in why, "the text may quote arguments; the log has it"
    shop.note.delay("b")
    eventually(lambda: "b" in ledger.finishes())
    eventually(lambda: at_rest(gate))
    assert ledger.runs() == {"b": 1}
    assert "Celery raised an error while it discarded" not in caplog.text, "nobody else heard of it"


@pytest.mark.parametrize("pool", HERE)
def test_before_a_batch_that_may_take_long_a_solo_loop_sends_its_acks(
    started, shop, ledger, monkeypatch, pool
):
    """Its strategy may run it within the delivery of its last job."""
    gate, events = started(pool), []
    gate.worker.app.tasks["shop.note"].Strategy = "batches:Strategy"
    leases = owner_of(gate).leases
    deliver, post = leases.deliver, leases.post
    monkeypatch.setattr(leases, "deliver", lambda lease: events.append("job") or deliver(lease))
    monkeypatch.setattr(leases, "post", lambda: events.append("acks") or post())

    def received(**_: Any) -> None:
        events.append("received")

    signals.task_received.connect(received)
    for job in ("a", "b"):  # each, and not the first one alone
        events.clear()
        shop.ran(job)
        sent = events[events.index("job") : events.index("received")]
        assert sent == ["job"] + ["acks"] * (pool == "solo")


def listen(app: Any) -> kombu.Queue:
    """Make the workers consume a queue of broadcasts. No other test may use its name: kombu
    remembers in this process that it is one."""
    name = "broadcasts-to-a-gate"
    app.control.add_consumer(name, name, "fanout", reply=True, timeout=5)
    return kombu.Queue(name, kombu.Exchange(name, "fanout"), name)


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_a_broadcast_has_no_claim_and_waits_for_a_slot_as_well(started, shop, ledger, pool):
    gate = started(pool)
    app = gate.worker.app
    radio = listen(app)
    shop.run("a")
    app.tasks["shop.note"].apply_async(("b",), queue=radio)
    always(lambda: "b" not in ledger.starts(), during=0.2)
    ledger.release("a")
    eventually(lambda: "b" in ledger.finishes())
    eventually(lambda: at_rest(gate))
    assert ledger.runs() == {"a": 1, "b": 1}


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_waits_for_the_slot_of_a_broadcast(started, shop, ledger, db, pool):
    """It was recorded as running in a pool of threads, and waited there for a thread."""
    gate = started(pool)
    app = gate.worker.app
    radio = listen(app)
    app.tasks["shop.hold"].apply_async(("a",), queue=radio)
    eventually(lambda: "a" in ledger.starts())
    shop.note.delay("b")
    eventually(lambda: db.held() and gate.waiting_count())
    always(lambda: not db.running(), during=0.5)
    ledger.release("a")
    eventually(lambda: "b" in ledger.finishes())
    eventually(lambda: at_rest(gate))
    assert ledger.runs() == {"a": 1, "b": 1}


@pytest.mark.parametrize("late", [0.05, 0, -1])
def test_a_job_for_later_waits_until_it_is_due(late):
    due = time.time() + late
    sleep_until(due)
    assert time.time() >= due
