"""One way to start a job: the MainProcess hands it over, and those who run it ask nobody."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from support.servers.database import Database
from support.waiting import always, eventually

POOLS = ("prefork", "threads", "solo", "gevent")


@pytest.mark.parametrize("pool", POOLS)
def test_an_app_that_a_task_makes_has_no_say_in_what_starts(worker, app, ledger, db, pool):
    """B. Jobs behind it asked the broker of whichever app was the current one, for 10 s each, and
    ran unrecorded."""
    jobs = [f"job-{n}" for n in range(6)]
    for job in jobs:
        app.send_task("shop.build", (job,))
    app.tasks["shop.hold"].delay("last")
    one = worker(app="builder", pool=pool, concurrency=1, args=["--prefetch-multiplier=8"])
    eventually(lambda: ledger.starts().get("last"))
    assert set(ledger.finishes()) == set(jobs)
    eventually(lambda: db.running() == ["last"], message="what runs is recorded")
    ledger.release()
    eventually(lambda: not db.held())
    assert set(ledger.runs().values()) == {1}
    assert "could not be asked" not in one.log()


def test_no_pool_process_has_a_connection_to_the_broker(worker, shop, db):
    """B. Each had one of its own, to ask whether its job might start."""
    one = worker(concurrency=2, result_url="", conf={"task_ignore_result": True})
    for number in range(20):
        shop.add.delay(number, number)
    eventually(db.settled)
    assert one.log().count("succeeded") == 20
    port = db.client.connection_pool.connection_kwargs["port"]

    def connected(process: Any) -> list[Any]:
        return [c for c in process.net_connections("tcp") if c.raddr and c.raddr.port == port]

    assert connected(psutil.Process(one.pid)), "the control: the MainProcess has some"
    assert not [connected(child) for child in one.children() if connected(child)]


@pytest.mark.parametrize(
    ("pool", "without"), [("prefork", ""), ("threads", ""), ("threads", "an_end_of_trust")]
)
def test_nothing_new_starts_while_the_owner_is_not_heard(
    fresh_server, make_app, worker, ledger, pool, without
):
    """B. Another may have what waits here, for all that its owner knows. What runs goes on. The
    control starts it unheard.

    The start record needs an open connection to the stopped server. If Celery's event heartbeat or
    a pass of the reaper waited with that one, the control would wait for another one."""
    server = fresh_server()
    app = make_app(superfetch=False, url=server.url())
    app.tasks["shop.hold"].delay("running")
    app.tasks["shop.note"].delay("behind")
    options = {"heartbeat_interval": 1, "owner_ttl": 600, "reap_interval": 60}
    place = {"url": server.url(), "result_url": "", "options": options}
    quiet = ["--without-heartbeat"]
    one = worker(env={"WITHOUT": without}, pool=pool, concurrency=1, args=quiet, **place)
    eventually(lambda: ledger.starts().get("running"))
    db = Database(server.client())
    eventually(lambda: [*db.held().values()] == [["running", "behind"]])
    server.pause()
    one.wait_log("Heartbeat failed", 30)  # "... failed": it was not heard for an interval
    ledger.release()
    if without:
        eventually(lambda: ledger.starts().get("behind"))
        return
    eventually(lambda: ledger.finishes().get("running"))
    always(lambda: not ledger.starts().get("behind"), during=2.0)
    server.resume()
    eventually(lambda: ledger.finishes().get("behind"))
    assert ledger.runs()["behind"] == 1


def test_a_job_that_came_too_late_runs_next_and_a_revoke_ends_no_other(worker, app, ledger, db):
    """B. A frozen child comes too late to its job. The next job in that child died of the order to
    end the first, and was gone: it counted as revoked."""
    one = worker(concurrency=1, options={"heartbeat_interval": 1})
    [child] = one.children()
    child.suspend()
    late = app.tasks["shop.note"].delay("late")
    eventually(lambda: db.running() == ["late"])
    app.tasks["shop.hold"].delay("other")
    eventually(lambda: [*db.held().values()] == [["late", "other"]])
    always(lambda: not ledger.starts(), during=3.0)
    child.resume()
    eventually(lambda: ledger.starts().get("other"), message="it waits behind the first")
    app.control.revoke(late.id, terminate=True)
    always(child.is_running, during=2.0)
    ledger.release()
    eventually(lambda: ledger.finishes().get("other"))
    eventually(db.settled)
    assert ledger.told("started") == ["late", "other"]


@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_job_that_is_revoked_while_it_waits_does_not_start(
    worker, app, ledger, db, pool, terminate
):
    """B. It waits in the MainProcess. Threads and greenlets ran it, or with ``terminate`` left it
    in flight, and running, as long as the worker lived."""
    worker(pool=pool, concurrency=1)
    app.tasks["shop.hold"].delay("first")
    eventually(lambda: ledger.starts().get("first"))
    revoked = app.tasks["shop.note"].delay("revoked")
    eventually(lambda: [*db.held().values()] == [["first", "revoked"]])
    app.control.revoke(revoked.id, terminate=terminate)
    assert app.control.ping(timeout=5, limit=1), "what was said before it was heard"
    ledger.release()
    app.tasks["shop.note"].delay("behind")
    eventually(lambda: ledger.finishes().get("behind"))
    eventually(lambda: db.settled() and not db.notes())
    assert set(ledger.starts()) == {"first", "behind"}
