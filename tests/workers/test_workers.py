"""One whole worker of each kind that dies, stops, or loses its connection; the rest is evidence."""

from __future__ import annotations

import signal

import celery
import pytest

from celery_superfetch import PoisonPill
from support.hosts import Host
from support.rows import row
from support.servers.faults import kill_connections
from support.waiting import eventually
from support.workers.kills import recovered_by_its_neighbour

#: The default, spelled out: these tests are about exactly this number of runs.
STRIKES = 3

#: The verdicts of the defaults, sooner: two missed heartbeats are 2 s, owner_ttl is 5 s.
QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_killed_workers_jobs_run_on_its_neighbour(worker, shop, ledger, db, pool):
    recovered_by_its_neighbour(worker, shop, ledger, db, pool, "kill9_all")


def test_a_job_that_kills_its_pool_child_runs_three_times_and_no_more(worker, shop, ledger, db):
    worker(concurrency=1)
    pill = shop.kill_child.delay("pill")
    shop.note.delay("bystander")
    with pytest.raises(
        PoisonPill, match=rf"moved to the dead set after {STRIKES} strikes.*pool process lost"
    ):
        pill.get(timeout=30)
    eventually(lambda: ledger.finishes().get("bystander"))
    assert ledger.runs()["pill"] == STRIKES
    assert ledger.runs()["bystander"] == 1
    (record,) = db.dead()
    assert record["task_id"] == pill.id
    assert record["queue"] == "celery"
    assert len(record["history"]) == STRIKES
    assert not db.counters()


def test_a_job_that_kills_its_worker_runs_three_times_and_no_more(worker, shop, ledger, db):
    pill = shop.kill_owner.delay("pill")
    for _ in range(STRIKES):
        worker(pool="solo", concurrency=1, ready=False).wait_exit()
    assert ledger.runs()["pill"] == STRIKES
    assert not db.dead(), "nobody was left to judge the last death"
    worker(pool="solo", concurrency=1)
    gone = "its process is (gone|a zombie)"  # nobody may have waited for it yet
    with pytest.raises(PoisonPill, match=rf"moved to the dead set after {STRIKES} strikes.*{gone}"):
        pill.get(timeout=30)
    shop.ran("next")
    assert ledger.runs()["pill"] == STRIKES
    assert [record["task_id"] for record in db.dead()] == [pill.id]


def test_pool_processes_that_are_killed_while_they_idle_are_replaced(worker, shop):
    """On Celery 5.5 the worker ended over some of them, and its jobs waited for another."""
    one = worker(concurrency=4)
    for number in range(10):
        killed = {*one.children()}
        for child in killed:
            child.kill()
        eventually(lambda killed=killed: len({*one.children()} - killed) == 4, message="replaced")
        shop.ran(f"n{number}")
    assert "Unrecoverable" not in one.log()


@row("TERM")
def test_another_worker_runs_meanwhile_what_a_stopping_one_gave_back(scenes):
    """The point of it: the running job may go on for hours."""
    (scene,) = scenes("solo")
    scene.settle()
    scene.tell(signal.SIGTERM)
    with scene.start("solo", concurrency=1) as heir:
        heir.wait_ready()
        scene.says(lambda: {"n0", "late", "p3"} <= set(scene.ledger.finishes()), "others run")
        assert "running" not in scene.ledger.finishes()
        scene.release()
        assert scene.worker.wait_exit() == 0
    assert set(scene.runs().values()) == {1}, scene.runs()


def test_a_free_slot_is_filled_while_others_run_through_a_lost_connection(
    worker, shop, ledger, client
):
    """C9. What runs counts against the prefetch here; Celery's own reduction counted it again."""
    # Before 5.7 Celery forgets at a reconnect which of its processes are at work, and lets other
    # jobs wait behind what they run.
    pool = "prefork" if celery.VERSION >= (5, 7) else "threads"
    one = worker(pool=pool, concurrency=4, args=["--prefetch-multiplier=1"])
    running = [f"running{number}" for number in range(3)]
    for name in running:
        shop.hold.delay(name)
    eventually(lambda: set(ledger.starts()) == {*running})
    kill_connections(client)
    one.wait_log("Trying to re-establish the connection")
    shop.note.delay("at once")
    eventually(lambda: "at once" in ledger.finishes(), 10, message="the fourth slot is free")
    ledger.release()
    eventually(lambda: {*running} <= set(ledger.finishes()))


@pytest.mark.netns
def test_a_dead_host_is_recovered_by_another(worker, shop, ledger, db):
    victim = worker(host=Host("here"), options=QUICK, concurrency=1)
    shop.run("running")
    owner = db.owner_of("running")
    shop.note.delay("reserved")
    eventually(lambda: db.held()[owner] == ["running", "reserved"])
    worker(host=Host("there"), options=QUICK, concurrency=1)
    victim.kill9_all()
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {"running", "reserved"})
    assert ledger.runs() == {"running": 2, "reserved": 1}
    assert db.fact(owner, "reason") == "its connections are closed and it missed two heartbeats"
    assert {line["host"] for line in ledger.lines("finished")} == {"there"}


@row("REMAP_SIGTERM=SIGQUIT")
def test_a_remapped_term_is_a_quit(scenes):
    cut = scenes("prefork", "solo", env={"REMAP_SIGTERM": "SIGQUIT"})
    for scene in cut:
        scene.settle()
    for scene in cut:
        scene.tell(signal.SIGTERM)
    for scene in cut:
        scene.ends()
        scene.was_cut()
        scene.has_given_back(cut=True)
