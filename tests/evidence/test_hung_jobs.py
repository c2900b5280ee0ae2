"""What a worker that says it is hung means for its jobs: A2, A3. And who is not to be taken for
dead: A4."""

from __future__ import annotations

import pytest

from support.servers.proxy import FaultProxy
from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}


@pytest.mark.parametrize(("without", "strikes"), [("", "0"), ("excuses", "1")])
def test_a_result_backend_that_hangs_the_loops_strikes_no_job(
    worker, shop, ledger, db, server, without, strikes
):
    """A2: each MainProcess stores that an expired job was revoked, and Celery waits for 120 s."""
    with FaultProxy(server.port) as proxy:
        settings = {"options": QUICK, "concurrency": 1, "result_url": proxy.url(5)}
        for queue in ("a", "b"):
            worker(**settings, queues=[queue], env={"WITHOUT": without})
        shop.hold.apply_async(("long",), queue="a")
        eventually(lambda: ledger.starts())
        owners = db.owners()
        proxy.stall()
        for queue in ("a", "b"):
            shop.note.apply_async((f"expired-{queue}",), queue=queue, expires=-60)
        eventually(lambda: not {*owners} & {*db.owners()}, message="both are reaped")
        assert {db.fact(owner, "state_before_reap") for owner in owners} == {"hung"}
        assert max(row["strikes"] for row in db.counters()) == strikes
        proxy.heal()
        ledger.release()
        eventually(lambda: ledger.runs() == {"long": 2}, message="its first run ends, too late")
        eventually(lambda: not db.private_lists() and not db.length("a"), message="all is settled")
    assert not db.dead()


@pytest.mark.parametrize("without", ["", "ended_permits"], ids=["", "control"])
def test_a_hung_worker_starts_nothing_more(worker, shop, ledger, db, tmp_path, without):
    """A3: its pool's threads go on, and a job that was only reserved may be another's by now."""
    file = tmp_path / "hang"
    # The latest heartbeat before is young: it would be good for two seconds more, at least.
    options = {"heartbeat_interval": 4, "owner_ttl": 8, "reap_interval": 4}
    worker(
        app="hung",
        pool="threads",
        options=options,
        concurrency=1,
        args=["--prefetch-multiplier=8"],
        env={"HANG": str(file), "WITHOUT": f"maintenance,{without}".rstrip(",")},
    )
    shop.run("running")
    shop.note.delay("reserved")
    owner = db.owner_of("running")
    eventually(lambda: "reserved" in db.held()[owner])
    file.write_text("trigger")
    shop.note.delay("trigger")
    eventually(lambda: db.fact(owner, "state") == "hung", message="it says so")
    ledger.release()
    eventually(lambda: "running" in ledger.finishes())
    if without:
        eventually(lambda: ledger.runs().get("reserved"), message="it starts all the same")
        return
    always(lambda: set(ledger.runs()) == {"running"}, during=3.0, message="nothing starts")
    file.unlink()
    eventually(lambda: not db.private_lists(), message="it goes on, and nobody took its jobs")
    assert ledger.runs() == dict.fromkeys(["running", "reserved", "trigger"], 1)


@pytest.mark.parametrize("without", ["", "a_hearing"], ids=["", "control"])
def test_a_neighbour_that_is_heard_lives_whatever_its_start_time_seems_to_be(
    worker, shop, ledger, db, without
):
    """A4: the clock was set, and what tells the start time of a process tells another now.

    Killed, it is dead at once: its pid is gone.
    """
    # Of a pool of processes, the children's start times would be others as well.
    one = worker(
        pool="threads", options=QUICK, concurrency=1, env={"HAPPENS": "a_step_of_the_clock"}
    )
    shop.run("long")
    [owner] = db.owners()
    worker(options=QUICK, concurrency=1, env={"WITHOUT": without})
    if without:
        eventually(lambda: owner not in db.owners(), message="it is robbed")
        return
    always(lambda: owner in db.owners(), during=4.0, message="it lives")
    assert ledger.runs() == {"long": 1}
    one.kill9_main()
    eventually(lambda: owner not in db.owners(), message="its pid is gone")
    assert db.fact(owner, "reason") in ("its process is gone", "its process is a zombie")
    eventually(lambda: ledger.runs() == {"long": 2})
    ledger.release()
    eventually(lambda: not db.private_lists(), message="all is settled")
    return None
