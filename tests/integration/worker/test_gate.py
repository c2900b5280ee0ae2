"""What stands before a worker's pool: the worker is in this process, its pool and its server are
real. `tests/evidence` has whole workers that freeze, are killed, and are short of something."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.worker import state

from celery_superfetch.model.config import ANNOUNCE_TASK
from celery_superfetch.model.job import Job
from celery_superfetch.model.permit import clock
from celery_superfetch.model.process import start_time
from celery_superfetch.store.runs import SUCCEEDED, Runs
from celery_superfetch.worker.gate import Gate, sleep_until
from celery_superfetch.worker.stopping import owners_of
from support.servers.ledger import Ledger
from support.waiting import always, eventually

QUEUE = "celery"
HERE = ("threads", "solo")  # pools that run jobs in this process


def add(a: int, b: int = 0) -> int:
    return a + b


@pytest.fixture
def started(
    make_app: Callable[..., Celery], ledger: Ledger, url: str
) -> Iterator[Callable[..., Gate]]:
    """`started("threads")`: the gate of a worker that ends with the test."""
    with ExitStack() as workers:

        def start(pool: str = "threads", concurrency: int = 1, **options: Any) -> Gate:
            options.setdefault("conf", {})["worker_hijack_root_logger"] = False
            app = make_app(result_url=url, **options)
            started = start_worker(
                app, concurrency, pool=pool, loglevel="INFO", perform_ping_check=False
            )
            gate = workers.enter_context(started).superfetch_gate
            eventually(lambda: gate.turns(), message="its loop turns")
            return gate

        yield start
        ledger.release()
        state.revoked.clear()


def at_rest(gate: Gate) -> bool:
    return not gate.busy(unsettled=True) and gate.free() == gate.slots


def owner_of(gate: Gate) -> Any:
    [owner] = owners_of(gate.worker)
    return owner


def late(gate: Gate, monkeypatch: Any, act: Callable[[], object] = int) -> None:
    """As if the process that runs its next job had slept since it was handed over; meanwhile
    something else may `act`."""
    owner, begin = owner_of(gate), owner_of(gate).begin

    def begin_late(job: Job, **how: Any) -> float:
        if until := begin(job, **how):
            monkeypatch.setattr(owner, "begin", begin)
            act()
        return until and clock() - 1

    monkeypatch.setattr(owner, "begin", begin_late)


def waits(gate: Gate, count: int = 1) -> list[Any]:
    """The jobs that wait for a slot, as soon as there are so many."""
    eventually(lambda: len(gate._waiting) == count, message=f"{count} wait for a slot")
    return list(gate._waiting)


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_how_a_run_ended_is_counted_and_its_slot_is_free_again(started, shop, bench, pool):
    gate, began = started(pool), time.monotonic()
    assert shop.add.delay(1, 2).get(timeout=30) == 3
    eventually(lambda: at_rest(gate))
    gate.run_counts.count(bench.database)
    counts = Runs(bench.database).counts()
    assert counts.ends == {(SUCCEEDED, QUEUE, "shop.add"): 1}
    assert 0 < counts.times["shop.add"].seconds < time.monotonic() - began


def test_what_a_worker_says_of_itself(started):
    threads, prefork = started("threads", 3), started("prefork", 2)
    processes = sorted(process.pid for process in prefork.pool._pool._pool)
    assert list(prefork.pids()) == [(pid, start_time(pid)) for pid in processes]
    assert not threads.pids()
    assert (threads.slots, prefork.slots) == (3, 2)
    assert prefork.node == prefork.worker.hostname
    assert threads.tasks == prefork.tasks
    assert len(threads.tasks) == 12


def test_workers_with_other_tasks_can_be_told_apart(started, make_app):
    app = make_app()
    app.task(name="another", shared=False)(at_rest)
    with start_worker(app, pool="solo", perform_ping_check=False) as other:
        assert other.superfetch_gate.tasks != started().tasks


@pytest.mark.parametrize("pool", HERE)
def test_a_loop_vouches_for_itself_unless_a_job_may_keep_it(started, shop, ledger, pool):
    gate = started(pool)
    shop.run("a")
    if pool == "solo":
        always(lambda: gate.turns() == 0, during=0.1)
    else:
        turns = gate.turns()
        eventually(lambda: gate.turns() > turns)
    ledger.release("a")
    eventually(lambda: gate.turns())
    gate.on_close()
    assert gate.turns() <= 1, "a loop that ended vouches for nothing; its last turn may come by"


def test_what_fails_for_good_ends_the_loop_at_its_next_turn(started):
    gate = started()
    gate.on_turn()
    gate.failure = RuntimeError("on purpose")
    with pytest.raises(RuntimeError, match="on purpose"):
        gate.on_turn()
    gate.failure = None


def test_only_notices_wait_for_a_result_backend_that_hangs(started, bench, monkeypatch):
    gate = started()
    owner = owner_of(gate)
    assert gate.not_before(ANNOUNCE_TASK, owner) == 0
    assert gate.not_before("shop.add", owner) == 0
    monkeypatch.setattr(gate.notice, "_held_off", True)
    monkeypatch.setattr(gate.notice, "_looked", time.monotonic())
    assert gate.not_before(ANNOUNCE_TASK, owner) > time.time()
    assert gate.not_before("shop.add", owner) == 0


def test_no_more_run_than_there_are_slots_and_the_next_begins_in_its_turn(started, shop, ledger):
    gate = started(concurrency=2)
    assert (gate.free(), gate.reserve()) == (2, 0)
    shop.run("a", "b")
    for name in "cd":
        shop.note.delay(name)
    waits(gate, 2)
    assert (gate.free(), gate.reserve()) == (-2, 2)
    state.reserved_requests.clear()  # as Celery before 5.7 at a lost connection
    assert (gate.free(), gate.reserve()) == (-2, 0)
    ledger.release("a")
    eventually(lambda: {"a", "c", "d"} <= ledger.finishes().keys())
    assert ledger.told("started")[-2:] == ["c", "d"]
    ledger.release("b")
    eventually(lambda: at_rest(gate))
    assert set(ledger.runs().values()) == {1}


def test_a_job_that_is_revoked_while_it_waits_does_not_run(started, shop, ledger, db):
    gate = started()
    shop.run("a")
    revoked = shop.note.delay("b")
    shop.note.delay("c")
    waits(gate, 2)
    state.revoked.add(revoked.id)
    ledger.release("a")
    eventually(lambda: "c" in ledger.finishes())
    eventually(lambda: at_rest(gate) and db.settled())
    assert "b" not in ledger.runs()


def test_a_job_that_has_left_while_it_waits_does_not_start_here(started, shop, ledger, db, caplog):
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    shop.note.delay("c")
    first, _ = waits(gate, 2)
    with caplog.at_level(logging.INFO):
        first.delivery.requeue()
        ledger.release("a")
        eventually(lambda: "c" in ledger.finishes())
    assert "does not start here: it has left this worker" in caplog.text
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs()["b"] == 1, "it went back to its queue"
    assert first.request.acknowledged


def test_beside_a_suspect_that_runs_alone_nothing_starts(started, shop, ledger, db, caplog):
    gate = started(concurrency=2)
    shop.run("a", "b")
    shop.note.delay("c")
    waits(gate)
    jobs = owner_of(gate).in_flight.jobs
    [jobs.alone] = [out.job for out in gate.out if "'a'" in out.request.argsrepr]
    jobs.alone_until = time.monotonic() + 600
    with caplog.at_level(logging.INFO):
        ledger.release("b")
        eventually(lambda: "another runs alone here" in caplog.text)
    always(lambda: "c" not in ledger.starts(), during=0.1)
    ledger.release("a")
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1, "b": 1, "c": 1}


def test_a_worker_that_is_told_to_stop_starts_nothing_more(started, shop, ledger):
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    waits(gate)
    owner_of(gate).stopping = True
    ledger.release("a")
    eventually(lambda: not gate.out)
    assert "b" not in ledger.runs()


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_who_comes_too_late_is_handed_over_again(started, shop, ledger, db, monkeypatch, pool):
    gate = started(pool)
    late(gate, monkeypatch)
    shop.ran("a")
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1}


def test_who_comes_too_late_and_has_no_channel_goes_back(started, shop, ledger, db, monkeypatch):
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    [waiting] = waits(gate)
    gate._waiting.clear()
    with monkeypatch.context() as lost:
        lost.setattr(waiting.delivery.channel, "closed", True)
        gate.take_back(waiting.request)
    assert waiting.request.acknowledged
    assert waiting.request not in state.reserved_requests
    ledger.release("a")
    eventually(lambda: "b" in ledger.finishes())
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1, "b": 1}


def test_with_early_ack_there_is_nothing_that_could_go_back(started, shop, ledger, monkeypatch):
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    [waiting] = waits(gate)
    waiting.request.acknowledge()
    gate._waiting.clear()
    monkeypatch.setattr(waiting.delivery.channel, "closed", True)
    gate.take_back(waiting.request)
    monkeypatch.undo()
    ledger.release("a")
    eventually(lambda: "b" in ledger.finishes())
    assert ledger.runs() == {"a": 1, "b": 1}


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_what_is_no_job_of_ours_goes_to_the_pool_as_it_is(started, pool):
    gate, ends = started(pool), []
    gate.apply_async(add, (1,), {"b": 2}, callback=ends.append)
    eventually(lambda: ends == [3])


def test_a_batch_that_fails_and_does_not_hear_of_it_is_told_in_the_log(started, caplog):
    gate = started("prefork")
    gate.apply_async(add, (1, "2"))
    eventually(lambda: "A batch that add ran was lost, or failed: " in caplog.text)


@pytest.mark.parametrize("late", [0.05, 0, -1])
def test_a_job_for_later_waits_until_it_is_due(late):
    due = time.time() + late
    sleep_until(due)
    assert time.time() >= due
