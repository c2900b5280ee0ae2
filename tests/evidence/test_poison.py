"""Every loop of crashes ends, in the dead set, and the caller is told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_superfetch import PoisonPill
from celery_superfetch.model.config import Config
from celery_superfetch.store import database as store
from celery_superfetch.store.dead_set import DeadSetStore
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually

#: Of a process that has just ended: nobody may have waited for it yet.
GONE = "its process is (gone|a zombie)"

#: The default, spelled out: these tests are about exactly this number of runs.
STRIKES = 3


def ended_by_its_strikes(pill: AsyncResult, shop: SimpleNamespace, ledger: Ledger) -> None:
    """Its caller hears of it, the worker goes on, and it has run as often as it may."""
    with pytest.raises(PoisonPill, match=rf"moved to the dead set after {STRIKES} strikes.*{GONE}"):
        pill.get(timeout=30)
    shop.ran("next")
    assert ledger.runs()["pill"] == STRIKES


def test_a_task_that_is_loaded_later_is_guarded_like_the_others(worker, app, ledger, db):
    """A5: it ran for ever, by Celery's own request class."""
    worker(concurrency=1, conf={"worker_pool_restarts": True})
    [reply] = app.control.pool_restart(
        modules=["support.apps.late"], reply=True, timeout=30, limit=1
    )
    assert {"ok": "reload started"} in reply.values()
    pill = app.send_task("late.kill_child", ("pill",))
    eventually(lambda: db.dead(), 60, message="it is killed")
    assert ledger.runs()["pill"] == STRIKES
    assert [record["task_id"] for record in db.dead()] == [pill.id]


def test_without_the_guard_a_poison_pill_goes_on(worker, shop, ledger, db):
    """The control: what ends the loop is the limit, and nothing else."""
    worker(concurrency=1, options={"strike_limit": 1000, "recovery_limit": 1000})
    shop.kill_child.delay("pill")
    eventually(lambda: ledger.runs()["pill"] > 2 * STRIKES, 90)
    assert not db.dead()


def test_a_hard_time_limit_without_ack_ends_too(worker, shop, ledger, db):
    worker(concurrency=1, conf={"task_acks_on_failure_or_timeout": False})
    pill = shop.hold.apply_async(("slow",), time_limit=1)
    eventually(lambda: db.dead(), message="it is killed")
    shop.ran("next")
    assert ledger.runs()["slow"] == STRIKES
    (record,) = db.dead()
    assert "hard time limit" in record["reason"]

    def told() -> bool:
        return isinstance(pill.result, PoisonPill)

    eventually(told, message="the caller is told of its death, not of the last timeout alone")


@pytest.mark.parametrize(
    "junk", [b"no message \xff at all", b"[]", b'{"body": ""}', b"null", b""], ids=repr
)
def test_an_item_that_is_no_message_is_put_aside_and_the_worker_goes_on(worker, shop, db, junk):
    one = worker(pool="solo", concurrency=1)
    db.client.lpush(f"{db.prefix}celery", junk)
    shop.ran("next")
    eventually(lambda: len(db.dead()) == 1)
    one.wait_log("Unparseable message moved to the dead set")
    assert one.alive()
    (job,) = DeadSetStore(store.Database(db.client, Config(global_keyprefix=db.prefix)))
    assert job.payload == junk
    eventually(lambda: not db.private_lists())


def test_junk_that_a_killed_worker_held_is_recovered_and_put_aside(worker, shop, ledger, db):
    victim = worker(pool="solo", concurrency=1)
    shop.run("running")
    [key] = db.private_lists()
    db.client.hset(db.prefix + key, "1:celery", b"junk")
    victim.kill9_all()
    ledger.release()
    worker(pool="solo", concurrency=1)
    eventually(lambda: ledger.finishes().get("running"))
    eventually(lambda: len(db.dead()) == 1)
    eventually(lambda: not db.private_lists())


def test_a_job_retried_from_the_dead_set_runs_again_with_a_clean_record(
    worker, shop, ledger, db, client
):
    worker(concurrency=1, options={"strike_limit": 2})
    shop.kill_child.delay("pill")
    eventually(lambda: len(db.dead()) == 1)
    assert ledger.runs()["pill"] == 2
    dead_set = DeadSetStore(store.Database(client, Config()))
    (job,) = dead_set
    assert dead_set.put_back([(job, job.queue_list, 0)]) == [1]
    eventually(lambda: ledger.runs()["pill"] == 4 and len(db.dead()) == 1)
    assert ledger.runs()["pill"] == 4


@pytest.fixture
def spared(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database
) -> Callable[[int], AsyncResult]:
    """A pill that is over its limit, and whose owners another app has reaped, with a limit of its
    own."""

    def make(theirs: int) -> AsyncResult:
        limits = {"strike_limit": theirs, "reap_interval": 1}
        stranger = worker(app="stranger", queues=["elsewhere"], concurrency=1, options=limits)
        pill: AsyncResult = shop.kill_owner.delay("pill")
        for death in range(1, STRIKES + 1):
            worker(pool="solo", concurrency=1, ready=False).wait_exit()
            eventually(
                lambda n=death: db.strikes().get("pill") == (n, "exact"), message="it is back"
            )
        assert not db.dead(), "a stranger kills nobody else's"
        assert ("belongs to app 'shop'" in stranger.log()) == (theirs == STRIKES)
        return pill

    return make


@pytest.mark.parametrize("theirs", [STRIKES, 10], ids=["on probation", "on its queue"])
def test_what_another_app_has_spared_its_own_kills_before_it_runs_again(
    worker, shop, ledger, db, spared, theirs
):
    """A4: the stranger was always the first to look, and the job went on for ever."""
    pill = spared(theirs)
    worker(pool="solo", concurrency=1)
    ended_by_its_strikes(pill, shop, ledger)
    [record] = db.dead()
    assert [entry["strike"] for entry in record["history"]] == ["exact"] * STRIKES
    assert not db.counters()
    assert not db.on_probation()


def test_otherwise_it_runs_again(worker, ledger, spared):
    """A4, the control."""
    spared(STRIKES)
    env = {"WITHOUT": "reception"}
    worker(pool="solo", concurrency=1, env=env, ready=False).wait_exit()
    assert ledger.runs()["pill"] == STRIKES + 1


@pytest.fixture
def old(make_app: Any) -> Celery:
    """Its messages are of protocol 1 (`task_protocol`, other languages): they name their task in
    the body."""
    return make_app(superfetch=False, conf={"task_protocol": 1})


def test_an_old_pill_that_kills_its_pool_child_runs_three_times(worker, old, ledger, db):
    """A2: the guard knew no task of that name, and spared it for ever."""
    worker(concurrency=1)
    kill, note = old.tasks["shop.kill_child"], old.tasks["shop.note"]
    pill = kill.apply_async(("pill",), link_error=note.si("told"))
    with pytest.raises(PoisonPill, match=rf"shop.kill_child.*after {STRIKES} strikes"):
        pill.get(timeout=60)
    assert ledger.runs()["pill"] == STRIKES
    eventually(lambda: "told" in ledger.finishes(), message="its errback runs")
    [record] = db.dead()
    assert (record["task"], record["task_id"]) == ("shop.kill_child", pill.id)


def test_an_old_pill_that_kills_its_worker_runs_three_times(worker, old, ledger, db):
    """A2: on threads each run ended a worker."""
    pill = old.tasks["shop.kill_owner"].delay("pill")
    for _ in range(STRIKES):
        worker(pool="threads", ready=False).wait_exit()
    worker(pool="threads")
    with pytest.raises(PoisonPill, match=rf"shop.kill_owner.*after {STRIKES} strikes"):
        pill.get(timeout=30)
    assert ledger.runs()["pill"] == STRIKES
    [record] = db.dead()
    assert (record["task"], record["task_id"]) == ("shop.kill_owner", pill.id)


#: That end a job.
STOPS = 3


def lives(worker: Any, count: int, **options: int) -> None:
    """A supervisor starts the worker again, so many times."""
    for _ in range(count):
        worker(concurrency=1, options=options, ready=False).wait_exit()


def test_a_loop_that_begins_with_term_ends(worker, shop, ledger, db):
    """A3, a job that has its worker stopped and then ends its own process: each was a requeue,
    counted by nobody: 25 runs in 25 s."""
    limits = {"stop_limit": STOPS, "recovery_limit": 1}
    pill = shop.stop_owner.delay("pill")
    lives(worker, STOPS - 1, **limits)
    [counters] = db.counters()
    counted = [counters[name] for name in ("recoveries", "strikes", "stops")]
    assert counted == [str(STOPS - 1), "0", str(STOPS - 1)], "a deploy is no fault"
    assert db.waiting() == ["pill"]
    lives(worker, 1, **limits)
    assert ledger.runs()["pill"] == STOPS
    [record] = db.dead()
    assert record["task_id"] == pill.id
    assert [entry["stop"] for entry in record["history"]] == [True] * STOPS
    worker(concurrency=1, options=limits)  # whoever lives tells its caller
    with pytest.raises(PoisonPill, match="pool process lost"):
        pill.get(timeout=10)


def test_without_the_limit_it_goes_on(worker, shop, ledger, db):
    """A3, the control: what ends the loop is the limit of stops."""
    shop.stop_owner.delay("pill")
    lives(worker, STOPS + 1, recovery_limit=1, stop_limit=1000)
    assert ledger.runs()["pill"] == STOPS + 1
    assert not db.dead()
