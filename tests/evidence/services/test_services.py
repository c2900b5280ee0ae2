"""Each service carries a fleet: jobs, an ETA, deaths on this host and on another, a poison pill."""

from __future__ import annotations

from typing import Any

import pytest

from support.hosts import Host, namespaces_available
from support.servers.database import Database
from support.servers.services import PROFILES, SILENT
from support.waiting import eventually

#: The verdicts of the defaults, sooner: two missed heartbeats are 2 s, owner_ttl is 5 s.
QUICK = {"heartbeat_interval": 1, "owner_ttl": 5, "reap_interval": 1}
JOBS = [f"n{n}" for n in range(200)]
HELD = [f"h{n}" for n in range(4)]
PER_WORKER = 2


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    every = metafunc.config.getoption("--services")
    names = [name for name, profile in PROFILES.items() if every or profile.sample]
    metafunc.parametrize("name", names)


def test_a_service_carries_a_fleet(worker, cli, make_app, ledger, managed, name):
    profile = PROFILES[name]
    own, service = managed(profile.manners)
    options = {**QUICK, **profile.options}
    prefix = profile.options.get("global_keyprefix", "")
    db = Database(own.client(), prefix)
    way = service.url()
    if profile.manners.tls:
        way = way.replace("redis:", "rediss:") + "?ssl_cert_reqs=none"
    where: dict[str, Any] = {"url": way, "result_url": own.url(), "options": options}
    app = make_app(**where)
    hold, note = app.tasks["shop.hold"], app.tasks["shop.note"]

    def serve(**settings: Any) -> tuple[Any, str]:
        known = set(db.owners())
        one = worker(concurrency=PER_WORKER, args=["--prefetch-multiplier=1"], **where, **settings)
        [owner] = set(db.owners()) - known
        return one, owner

    # 200 jobs, each once, and one with an ETA.
    here, _ = serve()
    for job in JOBS:
        note.delay(job)
    note.apply_async(("later",), countdown=3)
    once = dict.fromkeys([*JOBS, "later"], 1)
    eventually(lambda: ledger.runs() == once, message="each runs once")

    # Two deaths: on this host, and on one whose processes nobody here can see.
    abroad, _ = namespaces_available()
    far, owner_far = serve(host=Host("far") if abroad else None)
    for job in HELD:
        hold.delay(job)
    eventually(lambda: set(HELD) <= set(ledger.starts()), message="both workers are full")
    serve()
    here.kill9_all()
    far.kill9_all()
    eventually(lambda: db.fact(owner_far, "state") == "reaped", 60)
    if abroad:
        assert db.fact(owner_far, "reason") == profile.far
    ledger.release()
    eventually(lambda: set(HELD) <= set(ledger.finishes()), 60, message="they run again")
    eventually(lambda: not db.private_lists(), message="all is settled")
    assert ledger.runs() == {**once, **dict.fromkeys(HELD, 2)}

    # A job that kills its process ends in the dead set, and the worker serves on.
    app.tasks["shop.kill_child"].delay("pill")
    eventually(lambda: len(cli("dead", "list", "--json", **where).json()["jobs"]) == 1, 60)
    assert ledger.runs()["pill"] == 3
    note.delay("after")
    eventually(lambda: ledger.runs().get("after") == 1)

    # What the commands say of it.
    accepted = {**options, "accepted_findings": "eviction, no-persistence"}
    found: dict[str, list[str]] = {}
    for one in cli("doctor", "--json", code=None, **where).json()["findings"]:
        found.setdefault(one["code"], []).append(one["text"])
    missing = " ".join(found.get("missing-optional", []))
    assert "missing-required" not in found, found
    assert all(f"does not support {command}:" in missing for command in profile.lacks), missing
    assert profile.findings <= set(found), found
    assert ("slow-detection" in found) == (profile.far == SILENT), found
    row = cli("status", "--json", code=None, **where).json()
    assert [owner["state"] for owner in row["owners"]] == ["running"]
    # Until its caller has been told, the dead job is a warning.
    told = {**where, "options": accepted}
    eventually(lambda: cli("check", code=None, **told).code == profile.check, 30)
