"""A result backend that hangs: telling callers is nobody else's business."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery, chord
from celery.exceptions import ChordError

from celery_superfetch import PoisonPill
from celery_superfetch.app.notice import Notices
from celery_superfetch.app.reaper import reaper_of
from celery_superfetch.model.strikes import Decision
from celery_superfetch.signals import job_recovering
from support.waiting import always, eventually
from support.workers.bench import Bench, payload

OFTEN = {"reap_interval": 1}

MANY = 50  # notices that wait for a worker of two slots


def many_notices(client: redis.Redis, app: Celery) -> None:
    bench, make = Bench(client), Notices(app)
    for number in range(MANY):
        owner = bench.owner(lists=["celery"])
        [claimed] = bench.claimed(owner, payload(number, "celery", "told.pill"), queue="celery")
        call = bench.dead_set.kill_call(
            bench.recovery(claimed.job), marked=False, notice=make("celery")
        )
        assert bench.run(call)[0] == b"ok"
        client.lmove("celery", "notices", "RIGHT", "LEFT")
    client.rename("notices", "celery")


@pytest.fixture
def unannounced(app: Celery, make_app: Any, client: redis.Redis) -> dict[str, Any]:
    """Results of three jobs that were killed, two of them in a chord; nobody has told that yet."""
    alone = app.signature("told.pill", ("alone",)).apply_async(link_error=app.signature("told.old"))
    body = app.signature("told.note", kwargs={"who": "never"})
    choir = chord([app.signature("told.pill", (name,)) for name in ("one", "two")], body, app=app)()
    killer, bench = make_app(), Bench(client)
    job_recovering.connect(lambda **_: Decision.KILL, sender=killer, weak=False)
    jobs = bench.queue("celery")
    client.delete("celery")
    bench.dead_owner(jobs, "celery", lists=["celery"])
    assert reaper_of(killer, client).reap().killed == 3
    assert client.scard(bench.keys.unannounced) == client.llen("celery") == 3
    return {"alone": alone, "body": choir, "pills": [alone, *choir.parent.results]}


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_result_backend_that_hangs_stops_nobody(pool, worker, unannounced, client, ledger, proxy):
    """C1: it takes back a dead neighbour's jobs and runs them; callers hear later, errbacks and
    chord included."""
    proxy.stall()
    one = worker(app="told", options=OFTEN, result_url=proxy.url(), pool=pool, concurrency=2)
    one.wait_log("its caller is not informed yet")
    bench = Bench(client)
    job = payload("orphan", "celery", "told.note", ignore_result=True)
    dead = bench.dead_owner([job], "celery", lists=["celery"])
    eventually(lambda: "note" in ledger.starts(), message="a dead neighbour's job runs here")
    assert dead.owner in one.log()
    assert client.scard(bench.keys.unannounced) == 3
    proxy.heal()
    eventually(lambda: not client.exists(bench.keys.unannounced), within=60)
    for pill in unannounced["pills"]:
        assert isinstance(pill.result, PoisonPill)
    with pytest.raises((PoisonPill, ChordError)):
        unannounced["body"].get(timeout=10)
    # It is a job of its own, and may run a moment after the last notification has ended.
    eventually(lambda: {*ledger.told("old errback")} == {unannounced["alone"].id})
    assert {*ledger.told("task_failure")} == {"alone", "one", "two"}
    assert [line["job"] for line in ledger.lines("job_killed")].count(unannounced["alone"].id) == 1


def test_many_notices_leave_slots_to_others_while_results_hang(worker, app, client, ledger, proxy):
    """Each would wait for as long as the backend has to answer: all slots were theirs in turn."""
    many_notices(client, app)
    proxy.stall()
    worker(app="told", result_url=proxy.url(), concurrency=2)
    app.signature("told.note", ignore_result=True).apply_async()
    eventually(lambda: "note" in ledger.starts())
    assert client.scard("superfetch:dead:unannounced") == MANY
    proxy.heal()
    eventually(lambda: not client.exists("superfetch:dead:unannounced"), within=60)


def test_notices_that_would_wait_are_parked_before_they_get_a_slot(worker, app, client, proxy):
    """Each that was run, only to be sent anew, kept other jobs waiting: a thousand for 9 s."""
    many_notices(client, app)
    proxy.stall()
    worker(app="told", result_url=proxy.url(), concurrency=2, env={"PAUSE": "6"})

    def as_they_came() -> int:
        members = client.zrange("superfetch:parked:celery", 0, -1)
        return sum(b'"eta": null' in member for member in members)

    eventually(lambda: as_they_came() > MANY // 2)
    proxy.heal()
    eventually(lambda: not client.exists("superfetch:dead:unannounced"), within=60)


def test_the_control_where_all_wait_at_once(worker, app, client, ledger, proxy):
    many_notices(client, app)
    proxy.stall()
    worker(app="told", result_url=proxy.url(), concurrency=2, env={"WITHOUT": "turns"})
    app.signature("told.note", ignore_result=True).apply_async()
    always(lambda: "note" not in ledger.starts(), during=10)


@pytest.mark.parametrize("without", ["", "impatience"], ids=["with", "control"])
def test_a_notice_does_not_wait_in_its_slot_for_a_result_backend_that_refuses_writes(
    worker, app, client, ledger, fresh_server, without
):
    """A full one, which still answers reads. Each notice waited a minute in its slot, was requeued
    in front of all other jobs, and called the receivers of ``job_killed`` again."""
    results = fresh_server(maxmemory="1mb")
    one = worker(
        app="told",
        options={**OFTEN, "strike_limit": 1},
        result_url=results.url(),
        concurrency=1,
        env={"WITHOUT": without},
    )
    pill = app.signature("told.pill", ("one",)).apply_async()
    eventually(lambda: ledger.told("job_killed") == [pill.id])
    app.signature("told.note", ignore_result=True).apply_async()
    if without:
        always(lambda: "note" not in ledger.starts(), during=10)
        return
    eventually(lambda: "note" in ledger.starts())
    failed = "its caller is not informed yet. Tried again in"
    eventually(lambda: one.log().count(failed) == 2, within=30, message="and again, after a pause")
    assert ledger.told("job_killed") == [pill.id]
    results.client().config_set("maxmemory", "0")
    eventually(lambda: not client.exists("superfetch:dead:unannounced"), within=60)
    assert b'"FAILURE"' in results.client().get(f"celery-task-meta-{pill.id}")
    assert ledger.told("job_killed") == [pill.id]


def test_a_hook_that_hangs_costs_its_slot(worker, app, ledger):
    options = {**OFTEN, "strike_limit": 1}
    worker(app="told", options=options, env={"HANGS": "hung"}, concurrency=2)
    hung = app.send_task("told.pill", ("hung",))
    eventually(lambda: {*ledger.told("hangs")} == {"hung"})
    other = app.send_task("told.pill", ("other",))
    with pytest.raises(PoisonPill):
        other.get(timeout=60)
    eventually(lambda: {*ledger.told("poisoned")} == {"other"})
    ledger.release("hung")
    eventually(lambda: "hung" in ledger.told("poisoned"), within=60)
    assert isinstance(hung.result, PoisonPill)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_job_that_ends_while_the_result_backend_is_away_is_settled(
    pool, worker, fresh_server, shop, ledger, db
):
    """It stayed in flight as long as its worker lived, but in a process; and Celery counted a slot
    as taken for ever."""
    results = fresh_server()
    one = worker(pool=pool, concurrency=1, result_url=results.url())
    results.stop()
    for job in ("one", "two"):
        shop.note.delay(job)
    eventually(lambda: set(ledger.finishes()) == {"one", "two"})
    eventually(lambda: not db.held())
    assert one.alive()
    assert set(ledger.runs().values()) == {1}
