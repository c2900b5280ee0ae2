"""A worker that is frozen beyond its limits comes back to jobs that went elsewhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.hosts import Host
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.waiting import eventually

pytestmark = pytest.mark.netns

#: The verdicts of the defaults, sooner.
QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}
RESERVED = [f"n{n}" for n in range(3)]


def freeze_with_jobs_in_the_pool(
    worker: Any, shop: SimpleNamespace, ledger: Ledger, db: Database, pool: str, without: str = ""
) -> Any:
    """A worker that runs one job, has handed three to its pool, and sleeps until all of them
    are somebody else's; returns it thawed."""
    shop.hold.delay("running")
    for name in RESERVED:
        shop.note.delay(name)
    sleeper = worker(
        env={"WITHOUT": without},
        host=Host("here"),
        options=QUICK,
        concurrency=1,
        pool=pool,
        args=["--prefetch-multiplier=4"],
    )
    eventually(lambda: ledger.starts())
    owner = db.owner_of("running")
    eventually(lambda: db.held()[owner] == ["running", *RESERVED], message="all is claimed")
    with sleeper.frozen():
        worker(host=Host("there"), options=QUICK, concurrency=1, args=["--prefetch-multiplier=4"])
        eventually(lambda: ledger.runs().get("running") == 2, message="it runs again elsewhere")
    sleeper.wait_log(f"registered again under a new id (owner_before={owner}")
    ledger.release()
    eventually(lambda: set(ledger.finishes()) == {"running", *RESERVED})
    eventually(lambda: len(ledger.finishes()["running"]) == 2, message="both runs end")
    eventually(lambda: not db.private_lists(), message="all is settled")
    return sleeper


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_thawed_worker_drops_what_it_had_not_started(worker, shop, ledger, db, pool):
    thawed = freeze_with_jobs_in_the_pool(worker, shop, ledger, db, pool)
    assert "Lost ownership of job" in thawed.log(), "the running one is reported"
    eventually(lambda: thawed.log().count("and another worker recovered the job") == len(RESERVED))
    assert " is lost (" not in thawed.log()
    assert db.stat("ownership_lost") == 1

    # It works on under its new name; what it had before the freeze it does not run.
    names = [f"m{n}" for n in range(20)]
    for name in names:
        shop.note.delay(name)
    eventually(lambda: set(names) <= set(ledger.finishes()))
    eventually(
        lambda: {line["host"] for line in ledger.lines("finished")} == {"here", "there"},
        message="both work",
    )
    assert ledger.runs() == {"running": 2, **dict.fromkeys([*RESERVED, *names], 1)}
    thawed.stop()
    assert [name for name in db.owners() if name.startswith("here")] == []


def test_the_control_runs_twice_what_it_had_not_started(worker, shop, ledger, db):
    """Without asking at the start; one that had not started is enough to show it."""
    freeze_with_jobs_in_the_pool(worker, shop, ledger, db, "threads", "handover")
    eventually(lambda: max(ledger.runs()[name] for name in RESERVED) == 2)


@pytest.mark.parametrize(("without", "runs"), [("", 1), ("an_end_of_trust", 2)])
def test_a_job_that_need_not_ask_asks_when_that_was_long_ago(
    worker, shop, ledger, db, without, runs
):
    """Its child is frozen before it reads the job, its worker after it has said that it runs.

    The control: what the claim has told is believed for ever.
    """
    sleeper = worker(env={"WITHOUT": without}, host=Host("here"), options=QUICK, concurrency=1)
    shop.note.delay("first")
    eventually(lambda: ledger.finishes().get("first") and not db.held())
    [child] = sleeper.children()
    child.suspend()
    shop.note.delay("job")
    eventually(lambda: db.running() == ["job"], message="it is recorded as running")
    with sleeper.frozen():
        worker(host=Host("there"), options=QUICK, concurrency=1)
        eventually(lambda: ledger.finishes().get("job"), message="it runs elsewhere")
    sleeper.wait_log("registered again under a new id")
    eventually(lambda: ledger.runs()["job"] == runs)
    # What its child gets next comes behind that one.
    names = [f"m{n}" for n in range(20)]
    for name in names:
        shop.note.delay(name)
    eventually(
        lambda: (
            {line["host"] for line in ledger.lines("finished") if line["job"] in names}
            == {"here", "there"}
        ),
        message="both work",
    )
    eventually(db.settled)
    assert ledger.runs() == {"first": 1, "job": runs, **dict.fromkeys(names, 1)}
