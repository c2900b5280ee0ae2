"""A worker whose loop hangs while its heart could go on: it is dead by its own word (C4)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_superfetch.model.owner_rank import MOST_READS
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually
from support.workers.worker import Worker

#: So short that it passes while a test waits; a loop may sleep for 2 s.
TTL = 3
QUICK = {"heartbeat_interval": 1, "owner_ttl": TTL, "reap_interval": 1}
RESERVED = [f"n{n}" for n in range(3)]


def holding(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, **settings: Any
) -> tuple[Worker, str]:
    """A worker that runs one job and holds three, and its owner."""
    one = worker(
        app="hung", options=QUICK, concurrency=1, args=["--prefetch-multiplier=8"], **settings
    )
    shop.run("running")
    for name in RESERVED:
        shop.note.delay(name)
    owner = db.owner_of("running")
    eventually(lambda: db.held()[owner] == ["running", *RESERVED], message="all is claimed")
    return one, owner


def hung(
    worker: Any,
    shop: SimpleNamespace,
    ledger: Ledger,
    db: Database,
    tmp_path: Path,
    **settings: Any,
) -> SimpleNamespace:
    """A worker that runs one job, holds three, and hangs at the next; `end` ends that."""
    file = tmp_path / "hang"
    env = {"HANG": str(file), **settings.pop("env", {})}
    one, owner = holding(worker, shop, ledger, db, env=env, **settings)
    file.write_text("trigger")
    shop.note.delay("trigger")
    eventually(lambda: "trigger" in db.held()[owner], message="it is received")
    return SimpleNamespace(worker=one, owner=owner, end=file.unlink)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_hung_workers_jobs_go_to_others(worker, shop, ledger, db, cli, tmp_path, pool):
    """C4: each job that had not started runs once, elsewhere; what ran may run twice."""
    one = hung(worker, shop, ledger, db, tmp_path, pool=pool)
    eventually(lambda: db.fact(one.owner, "state") in ("hung", "reaped"), message="it says so")
    worker(options=QUICK, concurrency=5)
    eventually(lambda: {*RESERVED, "trigger"} <= set(ledger.finishes()), message="they run")
    eventually(lambda: ledger.runs()["running"] == 2)
    assert not any(int(row.get("strikes", 0)) for row in db.counters()), "no fault of what it ran"
    assert "its event loop had not ticked" in db.fact(one.owner, "reason")
    assert db.fact(one.owner, "state_before_reap") == "hung"
    always(lambda: one.owner not in db.owners(), during=1.0, message="it says nothing more")
    one.end()
    ledger.release()
    one.worker.wait_log(f"registered again under a new id (owner_before={one.owner}")
    names = [f"m{n}" for n in range(20)]
    for name in names:
        shop.note.delay(name)
    eventually(lambda: set(names) <= set(ledger.finishes()))
    eventually(lambda: not db.private_lists(), message="all is settled")
    once = dict.fromkeys([*RESERVED, "trigger", *names], 1)
    assert ledger.runs() == {"running": 2, **once}
    one.worker.stop()


def test_status_names_a_hung_worker(worker, shop, ledger, db, cli, tmp_path):
    """C4: a worker that nobody reaps (there is no maintenance in it) is dead in `status`."""
    env = {"WITHOUT": "maintenance"}
    one = hung(worker, shop, ledger, db, tmp_path, pool="threads", env=env)
    eventually(lambda: db.fact(one.owner, "state") == "hung", message="it says so")
    said = db.heard(one.owner)
    [row] = cli("status", "--json", options=QUICK).json()["owners"]
    assert (row["state"], row["verdict"]) == ("hung", "dead")
    assert "event loop" in row["reason"]
    always(lambda: db.heard(one.owner) == said, during=3.0, message="that was its last word")
    one.end()
    eventually(lambda: db.fact(one.owner, "state") == "running", message="it goes on")
    ledger.release()
    eventually(lambda: not db.private_lists(), message="nobody took its jobs")
    assert ledger.runs() == dict.fromkeys(["running", *RESERVED, "trigger"], 1)


def test_the_control_keeps_its_jobs_for_as_long_as_it_hangs(worker, shop, ledger, db, tmp_path):
    """C4's control: the heart vouches without a look."""
    one = hung(
        worker, shop, ledger, db, tmp_path, pool="threads", env={"WITHOUT": "look_at_the_loop"}
    )
    worker(options=QUICK, concurrency=5)
    always(lambda: "trigger" in db.held()[one.owner], during=3 * TTL)
    one.end()
    ledger.release()
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == dict.fromkeys(["running", *RESERVED, "trigger"], 1)


def test_a_hung_gevent_worker_says_so_by_its_pulse(worker, shop, ledger, db, tmp_path):
    """C4: the heart's own thread is a greenlet there, and hangs with the hub."""
    file = tmp_path / "hang"
    one = worker(app="hung", pool="gevent", options=QUICK, concurrency=1, env={"HANG": str(file)})
    file.write_text("trigger")
    shop.note.delay("trigger")
    owner = eventually(lambda: db.owner_of("trigger"))
    eventually(lambda: db.fact(owner, "state") == "hung", message="it says so")
    worker(options=QUICK, concurrency=1)
    eventually(lambda: ledger.runs() == {"trigger": 1}, message="another takes it")
    file.unlink()
    one.wait_log("registered again under a new id")
    assert ledger.runs() == {"trigger": 1}


def never_hung(db: Database, owner: str) -> None:
    states = "hung", "reaped"
    always(lambda: db.fact(owner, "state") not in states, 2.5 * TTL, message="it is vouched")


@pytest.mark.parametrize("pool", ["solo", "gevent", "custom"])
def test_a_long_job_in_the_loops_own_thread_is_no_hang(
    worker, shop, ledger, db, make_app, pool, monkeypatch
):
    """C4: it takes longer than owner_ttl. Also in a user's own pool that is made of Celery's solo:
    others took the job, which ran beside itself."""
    monkeypatch.setenv("CELERY_CUSTOM_WORKER_POOL", "support.apps.hung:OwnPool")
    one = worker(app="hung", pool=pool, options=QUICK, concurrency=2)
    shop.note.app.send_task("shop.keep", ("long",))
    eventually(lambda: ledger.starts())
    never_hung(db, db.owner_of("long"))
    ledger.release()
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == {"long": 1}
    one.stop()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_long_warm_shutdown_is_no_hang(worker, shop, ledger, db, pool):
    """C4: the loop does not turn while the pool is joined."""
    one = worker(app="hung", pool=pool, options=QUICK, concurrency=1)
    shop.run("long")
    owner = db.owner_of("long")
    one.term()
    eventually(lambda: db.fact(owner, "state") == "stopping")
    never_hung(db, owner)
    ledger.release()
    assert one.wait_exit() == 0
    assert ledger.runs() == {"long": 1}
    assert not db.private_lists()


def test_a_broker_that_is_away_for_long_makes_nobody_hung(
    worker, fresh_server, env, ledger, make_app
):
    """C4: the loop waits for the server, and so does the heart."""
    own = fresh_server(appendonly=True, appendfsync="always")
    one = worker(app="hung", url=own.url(), options=QUICK, concurrency=1)
    app = make_app(superfetch=False, url=own.url())
    app.tasks["shop.hold"].delay("long")
    eventually(lambda: ledger.starts())
    db = Database(own.client())
    owner = db.owner_of("long")
    own.kill()
    one.wait_log("Heartbeat failed")
    always(lambda: "hung" not in one.log(), during=2 * TTL)
    own.restart()
    db = Database(own.client())
    eventually(lambda: db.heard(owner))
    never_hung(db, owner)
    ledger.release()
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == {"long": 1}


def test_a_reply_that_is_cut_half_way_keeps_nobody(worker, server, url, ledger, db, shop):
    """C4: half of a BLMOVE's reply comes, and the connection stays open."""
    with FaultProxy(server.port) as proxy:
        worker(app="hung", url=proxy.url(), concurrency=1, env={"REPLY_TIMEOUT": "1"})
        eventually(lambda: db.client.info("clients")["blocked_clients"] >= 1)
        halved = proxy.halve_at(lambda words: words[0].upper() == b"BLMOVE")
        # Those that wait already were sent before.
        shop.ran("before")
        eventually(lambda: db.client.info("clients")["blocked_clients"] >= 1)
        for n in range(4):
            shop.note.delay(f"job{n}")
        assert halved.wait(30)
        eventually(lambda: not db.private_lists() and not db.length(), message="it goes on")
        jobs = ["before", *(f"job{n}" for n in range(4))]
        eventually(lambda: ledger.runs() == dict.fromkeys(jobs, 1))


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_no_socket_of_a_worker_is_without_a_timeout(worker, app, shop, ledger, pool):
    """C4: neither kombu's own, nor ours, nor those of a pool's processes; the user set none."""
    queues = ["celery", *(f"q{n}" for n in range(5))]  # so many that some are tracked
    one = worker(app="hung", pool=pool, concurrency=2, neighbours=True, args=["-E"], queues=queues)
    for _ in range(3):
        without, opened = app.send_task("shop.sockets").get(timeout=30)
        assert (without, opened > 0) == ([], True), "in the process that runs it"
    [(without, opened)] = app.control.inspect(timeout=10, limit=1)._request("sockets").values()
    assert without == [], "in the MainProcess"
    reads = 1 if pool == "solo" else MOST_READS
    assert opened >= reads + 1 + 1 + 3, "blocking reads, tracking, the heart, kombu's own"
    assert one.alive()


@pytest.mark.parametrize("without", ["", "look_at_the_loop"], ids=["heart", "control"])
def test_a_black_holed_workers_jobs_go_to_others(worker, server, url, shop, ledger, db, without):
    """C4: a firewall forgot its connections, and its loop waits for an answer that cannot come.

    Its heart finds the server again. The control: it vouches without a look, and the jobs wait.
    """
    with FaultProxy(server.port) as proxy:
        # As long as a wait may take by default, in terms of `owner_ttl`.
        env = {"REPLY_TIMEOUT": str(5 * TTL), "WITHOUT": without}
        one, owner = holding(worker, shop, ledger, db, url=proxy.url(), env=env)
        assert proxy.black_hole()
        ledger.release()  # its loop settles that, and waits
        one.wait_log("Heartbeat restored")
        worker(options=QUICK, concurrency=2)
        if without:
            always(lambda: db.owner_of(RESERVED[-1]) == owner, during=3 * TTL)
            return
        eventually(lambda: set(RESERVED) <= set(ledger.finishes()), 4 * TTL, message="they run")
        assert db.fact(owner, "state_before_reap") == "hung"
        one.wait_log("registered again under a new id")
        eventually(lambda: not db.private_lists() and not db.length(), message="all is settled")
        assert {job: n for job, n in ledger.runs().items() if job in RESERVED} == dict.fromkeys(
            RESERVED, 1
        )
