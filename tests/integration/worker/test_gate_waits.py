"""Who waits before a worker's pool: for a slot, beside a suspect, and since he came too late."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest
from celery.worker import state

from support.driver import Driver
from support.waiting import always, eventually
from support.workers.inside import HERE, acknowledge, at_rest, late, owner_of, paused, waits


def test_no_more_run_than_there_are_slots_and_the_next_begins_in_its_turn(started, shop, ledger):
    gate = started(concurrency=2)
    assert (gate.free(), gate.waiting_count()) == (2, 0)
    shop.run("a", "b")
    for name in "cd":
        shop.note.delay(name)
    waits(gate, 2)
    assert (gate.free(), gate.waiting_count()) == (-2, 2)
    state.reserved_requests.clear()  # as Celery before 5.7 at a lost connection
    assert (gate.free(), gate.waiting_count()) == (-2, 0)
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
    with caplog.at_level(logging.DEBUG):
        first.delivery.requeue()
        ledger.release("a")
        eventually(lambda: "c" in ledger.finishes())
    assert "does not start on this worker: its ownership was lost" in caplog.text
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs()["b"] == 1, "it went back to its queue"
    assert first.acknowledged


@pytest.mark.parametrize("early", [False, True], ids=["late ack", "early ack"])
def test_beside_a_suspect_that_runs_alone_nothing_starts(started, shop, ledger, db, caplog, early):
    """With early ack nothing is left that could go back: it waits."""
    gate = started(concurrency=2)
    shop.run("a", "b")
    shop.note.delay("c")
    [waiting] = waits(gate)
    if early:
        acknowledge(gate, waiting)
    [alone] = [out.delivery.job for out in gate.out if "'a'" in out.argsrepr]
    Driver.of(owner_of(gate)).run_solo(alone, seconds=600)
    with caplog.at_level(logging.INFO):
        ledger.release("b")
        eventually(lambda: len(gate.out) == 1)
        always(lambda: "c" not in ledger.starts(), during=0.1)
    assert ("another job runs in isolation" in caplog.text) is not early
    ledger.release("a")
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1, "b": 1, "c": 1}


def test_a_worker_that_is_told_to_stop_starts_nothing_more(started, shop, ledger, monkeypatch):
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    waits(gate)
    stops = property(lambda _: True, lambda *_: None)  # nobody takes it back
    monkeypatch.setattr(type(owner_of(gate)), "stopping", stops, raising=False)
    ledger.release("a")
    eventually(lambda: not gate.out)
    assert "b" not in ledger.runs()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("way", ["revoked", "left"])
def test_the_slot_of_who_does_not_start_is_free_again(started, shop, ledger, db, pool, way):
    gate = started(pool, concurrency=2)
    with paused(gate):
        shop.note.delay("a")
        [waiting] = waits(gate)
        if way == "revoked":
            state.revoked.add(waiting.id)
        else:
            waiting.delivery.requeue()
    shop.run("b", "c")
    assert len(gate.out) == 2
    ledger.release()
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"b": 1, "c": 1} | ({"a": 1} if way == "left" else {})


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_who_comes_too_late_is_handed_over_again(started, shop, ledger, db, monkeypatch, pool):
    gate = started(pool)
    late(gate, monkeypatch)
    shop.ran("a")
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1}


@pytest.mark.parametrize("pool", ["prefork", *HERE])
def test_who_comes_too_late_stays_ahead_of_those_that_were_sent_later(
    started, shop, ledger, db, monkeypatch, pool
):
    """It went to the end: a pool whose processes load slowly began it after jobs that were sent a
    minute later."""
    gate = started(pool)
    late(gate, monkeypatch)
    with paused(gate):
        for job in ("a", "b", "c"):
            shop.note.delay(job)
        waits(gate, 3)
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.told("started") == ["a", "b", "c"]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_until_then_it_waits_and_nobody_takes_it_for_one_that_runs(
    started, shop, ledger, db, monkeypatch, pool
):
    """Who ends it now must not end what runs where it was to."""
    gate = started(pool)
    with ExitStack() as pause:
        late(gate, monkeypatch, act=lambda: pause.enter_context(paused(gate)))
        redispatch, again = gate.redispatch, []
        monkeypatch.setattr(gate, "redispatch", lambda r: [redispatch(r), again.append(r)])
        shop.note.delay("a")
        eventually(lambda: again and gate._waiting, message="it waits again")
        request = gate._waiting[0]
        assert (request.time_start, request.worker_pid, request._apply_result) == (None,) * 3
        assert request in state.reserved_requests
        assert request not in state.active_requests
        assert Driver.of(owner_of(gate)).is_reserved(request.delivery.job)
        eventually(lambda: not db.running(), message="its record is gone")
    shop.ran("b")
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1, "b": 1}
    assert db.stat("requeued") == 0, "and has not been to its queue meanwhile"


@pytest.mark.parametrize("early", [False, True], ids=["late ack", "early ack"])
def test_who_comes_too_late_and_has_no_channel_goes_back(
    started, shop, ledger, db, monkeypatch, early
):
    """With early ack there is nothing that could."""
    gate = started()
    shop.run("a")
    shop.note.delay("b")
    [waiting] = waits(gate)
    if early:
        acknowledge(gate, waiting)
    gate._waiting.clear()
    with monkeypatch.context() as lost:
        lost.setattr(waiting.delivery.channel, "closed", True)
        gate.redispatch(waiting)
        gate.ended(waiting)
    assert waiting.acknowledged
    assert (waiting in state.reserved_requests) is early
    ledger.release("a")
    eventually(lambda: "b" in ledger.finishes())
    eventually(lambda: at_rest(gate) and db.settled())
    assert ledger.runs() == {"a": 1, "b": 1}
