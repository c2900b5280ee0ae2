"""Death on other hosts: nobody can look at the process there, and names and pids mean nothing."""

from __future__ import annotations

import pytest

from support.hosts import Host
from support.servers.database import Database
from support.waiting import always, eventually

pytestmark = pytest.mark.netns

#: The verdicts of the defaults, sooner: two missed heartbeats are 2 s, owner_ttl is 5 s.
QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}


def test_a_restarted_container_takes_back_what_its_predecessor_held(worker, shop, ledger, db):
    victim = worker(host=Host("box"), options=QUICK, name="same", concurrency=1)
    shop.run("running")
    dead = db.owner_of("running")
    victim.kill9_all()
    worker(host=Host("box"), options=QUICK, name="same", concurrency=1)
    eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
    alive = db.owner_of("running")
    assert [owner.split("|")[:2] for owner in (dead, alive)] == [["box", "1"]] * 2
    assert dead != alive
    ledger.release()
    eventually(lambda: ledger.finishes())
    assert ledger.runs() == {"running": 2}


def test_of_two_containers_with_one_name_and_pid_the_survivor_keeps_its_jobs(
    worker, shop, ledger, db
):
    victim = worker(host=Host("twin"), options=QUICK, name="same", concurrency=2)
    shop.run("a0", "a1")
    dead = db.owner_of("a0")

    # Enough for its prefetch: else the survivor takes what the dead one's would leave.
    worker(host=Host("twin"), options=QUICK, name="same", concurrency=2)
    for name in ("b0", "b1", *(f"n{n}" for n in range(12))):
        shop.hold.delay(name)
    eventually(lambda: len(ledger.starts()) == 4)
    (alive,) = set(db.owners()) - {dead}
    assert dead.split("|")[:2] == alive.split("|")[:2]
    pids = {line["job"]: line["pid"] for line in ledger.lines("started")}
    mine = [job for job, owner in ((j, db.owner_of(j)) for j in pids) if owner == alive]
    assert len(mine) == 2
    victim.kill9_all()
    eventually(lambda: db.fact(dead, "state") == "reaped", message="the dead one is reaped")
    always(lambda: all(ledger.runs()[job] == 1 for job in mine), during=3)
    ledger.release()
    eventually(lambda: len(ledger.finishes()) == 16)
    assert ledger.runs() == {job: 2 if job in ("a0", "a1") else 1 for job in ledger.starts()}
    assert db.fact(alive, "state") == "running"


def test_a_frozen_owner_keeps_its_jobs_for_owner_ttl_and_goes_on_under_a_new_name(
    worker, shop, ledger, db
):
    sleeper = worker(host=Host("here"), options=QUICK, concurrency=1)
    shop.run("running")
    owner = db.owner_of("running")
    other = worker(host=Host("there"), options=QUICK, concurrency=1)
    with sleeper.frozen():
        last = db.heard(owner)
        eventually(lambda: ledger.runs()["running"] == 2, message="it runs again")
        assert db.fact(owner, "reason") == "no heartbeat for its owner_ttl"
        assert int(db.fact(owner, "reaped_at")) - last >= QUICK["owner_ttl"] * 1000
    sleeper.wait_log("registered again under a new id")
    ledger.release()
    eventually(lambda: len(ledger.finishes()["running"]) == 2)
    sleeper.wait_log("Lost ownership of job")

    other.stop()
    shop.ran("next")  # by the thawed one
    assert ledger.runs() == {"running": 2, "next": 1}
    (renewed,) = db.owners()
    assert renewed != owner
    eventually(lambda: not db.private_lists(), message="all is settled")


@pytest.mark.parametrize("forbidden", ["", "-client|kill", "-client"])
def test_a_claim_that_lands_after_its_owner_was_reaped_is_recovered(
    worker, shop, ledger, db, fresh_server, make_app, forbidden
):
    """The blocking read of a frozen process still claims, unless the reaper could cut it."""
    own = fresh_server()
    rules = ["on", ">pw", "~*", "&*", "+@all", *([forbidden] if forbidden else [])]
    own.client().execute_command("ACL", "SETUSER", "shop", *rules)
    place = {
        "url": f"redis://shop:pw@127.0.0.1:{own.port}/0",
        "result_url": own.url(1),
        "options": QUICK,
        "concurrency": 1,
    }
    there = Database(own.client())
    sleeper = worker(host=Host("here"), **place)
    (owner,) = there.owners()
    other = worker(host=Host("there"), **place)
    if forbidden != "-client":  # its heart's, and a blocking read's for each priority step
        eventually(lambda: there.fact(owner, "connections").count(",") == 4)
    note = make_app(superfetch=False, url=own.url()).tasks["shop.note"]
    with sleeper.frozen():
        other.wait_log(f"declared dead (owner={owner})")
        # Whoever blocked first is served first: that was the sleeper.
        names = [f"n{n}" for n in range(3)]
        for name in names:
            note.delay(name)
        eventually(lambda: set(ledger.finishes()) == set(names))
    late = "1 job recovered" in other.log()
    assert late == bool(forbidden), "what was cut off cannot land"
    eventually(lambda: len(there.owners()) == 2, message="the thawed one is back")
    assert owner not in there.owners()
    for name in (more := [f"m{n}" for n in range(3)]):
        note.delay(name)
    eventually(lambda: set(ledger.finishes()) == {*names, *more})
    assert ledger.runs() == dict.fromkeys([*names, *more], 1)
    eventually(lambda: not there.private_lists(), message="all is settled")
