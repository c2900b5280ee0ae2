"""`celery superfetch jobs`: who has which job, in which state."""

from __future__ import annotations

import base64
import json
import socket
import time
from datetime import datetime
from typing import Any

import pytest

from celery_superfetch.console.commands.jobs_table import ending
from celery_superfetch.console.jobs import JobsSnapshot, Which
from celery_superfetch.inspector import Inspector
from celery_superfetch.model.job import claim_number, digest
from celery_superfetch.store.in_flight_jobs import JOBS_PER_COMMAND
from support.servers.ledger import Ledger
from support.waiting import eventually
from support.workers.bench import elsewhere, payload
from support.workers.cli import Result

ALONE = {"reap_interval": 3600}


def states(result: Result) -> dict[str, str]:
    return {job["id"]: job["state"] for job in result.json()["jobs"]}


def test_the_jobs_of_a_real_worker_by_state(cli, worker, shop, ledger: Ledger, client):
    one = worker(options=ALONE, concurrency=1, conf={"worker_prefetch_multiplier": 3})
    began = time.time()
    runs = shop.hold.delay("runs")
    eventually(lambda: ledger.starts().get("runs"))
    waits = shop.note.delay("waits")
    later = shop.note.apply_async(("later",), countdown=3600)
    expected = {runs.id: "running", waits.id: "reserved", later.id: "parked"}
    eventually(lambda: states(cli("jobs", "--json")) == expected, every=0.2)

    found = {job["id"]: job for job in cli("jobs", "--json").json()["jobs"]}
    for id in (runs.id, waits.id):
        assert found[id]["node"] == f"{one.name}@{socket.gethostname()}"
        claimed = datetime.fromisoformat(found[id]["claimed"]).timestamp()
        assert began - 2 <= claimed <= time.time()
    assert (found[later.id]["node"], found[later.id]["claimed"]) == (None, None), "nobody's"
    due = datetime.fromisoformat(found[later.id]["due"]).timestamp()
    assert 3500 < due - began < 3700
    for id, state in expected.items():
        option = "scheduled" if state == "parked" else state
        assert states(cli("jobs", "--state", option, "--json")) == {id: state}
    assert states(cli("jobs", "--task", "*.hold", "--json")) == {runs.id: "running"}
    assert states(cli("jobs", "--queue", "mail", "--json")) == {}
    assert "No job matches" in cli("jobs", "--node", "nobody*").out

    short = cli("jobs", "--limit", "1")
    assert "1 job, and 2 more: --limit 3" in short.out
    one.die()
    rows = cli("jobs", process=True).out.splitlines()
    assert sorted(row.split()[1] for row in rows[1:4]) == ["reserved", "running", "scheduled"]


def test_suspects_and_struck_jobs(cli, bench):
    names = [payload(f"{number}", queue="mail") for number in range(2)]
    bench.client.lpush(bench.keys.probation("mail"), *names)
    bench.client.sadd(bench.keys.on_probation, "mail")
    bench.client.hset(bench.keys.history(digest(names[1])), "strikes", 2)
    found = cli("jobs", "--json").json()["jobs"]
    assert [(job["id"], job["state"], job["strikes"]) for job in found] == [
        ("0", "probation", 0),
        ("1", "probation", 2),
    ]
    struck = states(cli("jobs", "--state", "struck", "--json"))
    assert struck == {"1": "probation"}
    assert states(cli("jobs", "--state", "running", "--json")) == {}


@pytest.fixture
def crowd(bench) -> Any:
    """An owner with many jobs from two lists, of which one runs, and one that has just landed."""
    owner = bench.owner(lists=["mail", "slow"])
    bench.give(owner, "slow", [payload(f"s{number}", "slow") for number in range(699)])
    mine = bench.give(owner, "mail", [payload(f"n{number}") for number in range(250)])
    bench.run_one(mine[7])
    bench.land(owner, "mail", payload("landed"))
    return owner


def test_many_jobs_are_read_in_pages_and_each_is_found_once(cli, crowd):
    found = cli("jobs", "--json", "--limit", "10000").json()
    ids = [job["id"] for job in found["jobs"]]
    slow = [f"s{number}" for number in range(699)]
    others = [f"n{number}" for number in range(250) if number != 7]
    assert ids == ["n7", *slow, *others, "landed"], "what runs, then the oldest claim first"
    assert (found["jobs"][-1]["claimed"], found["jobs"][-1]["state"]) == (None, "reserved")
    first = cli("jobs", "--json").json()
    assert (len(first["jobs"]), first["more"], first["complete"]) == (100, 850, True)
    [one] = cli("jobs", "--json", "--task", "shop.note", "--limit", "1").json()["jobs"]
    assert one["id"] == "n7"
    waiting = "--queue", "mail", "--state", "reserved"
    [one] = cli("jobs", "--json", *waiting, "--limit", "1").json()["jobs"]
    assert one["id"] == "n0"


def test_a_look_reads_no_more_than_it_shows(cli, crowd, bench):
    with bench.client.monitor() as monitor:
        cli("jobs", "--limit", "30")
        bench.client.echo("over")
        sent = []
        while (command := monitor.next_command()["command"]) != "ECHO over":
            sent.append(command)
    reads = [command.split()[0] for command in sent if command.split()[0] in ("LRANGE", "HGET")]
    assert 30 < len(reads) <= 30 + JOBS_PER_COMMAND, reads


def test_a_condition_costs_no_command_for_each_list_of_each_owner(cli, bench):
    lists = [f"list-{number}" for number in range(40)]
    for number in range(120):
        owner = bench.owner(elsewhere(f"web-{number}"), lists=lists)
        bench.give(owner.owner, lists[number % 40], [payload(f"{number}")])
    bench.client.config_resetstat()
    found = cli("jobs", "--task", "nomatch", "--json").json()
    assert (found["jobs"], found["complete"]) == ([], True)
    stats = bench.client.info("commandstats")
    calls = {
        name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "hkeys")
    }
    assert calls["evalsha"] < 10, calls
    assert calls["hkeys"] == 240, "of each who holds something, to count it and to read it"
    found = cli("jobs", "--task", "*.note", "--json", "--limit", "1").json()
    assert (len(found["jobs"]), found["more"]) == (1, 119)


def test_a_long_look_says_so_before_it_begins(cli, bench):
    owner = bench.owner(lists=["mail"])
    bench.give(owner.owner, "mail", [payload(f"{number}") for number in range(1001)])
    told = cli("jobs", "--task", "nomatch")
    assert "Reading 1,001 jobs ..." in told.err
    assert "Reading" not in cli("jobs").err, "nothing has to be read for that"


def test_a_condition_sees_all_jobs_or_says_how_many_it_saw(cli, bench):
    owner = bench.owner(lists=["mail"])
    names = [f"n{number}" for number in range(2000)]
    bench.give(owner.owner, "mail", [payload(name) for name in names])
    bench.client.hset(bench.keys.history(digest(payload(names[-1]))), "strikes", 1)
    found = cli("jobs", "--state", "struck", "--json").json()
    assert [job["id"] for job in found["jobs"]] == [names[-1]]
    assert (found["more"], found["complete"]) == (0, True)

    inspector = Inspector(bench.database)
    page = JobsSnapshot(inspector, Which("struck")).first(10, most=500)
    assert (page["jobs"], page["complete"], page["size"]) == ([], False, 2000)
    assert 500 < page["read"] < 2000
    said = ending(0, page, picked=True)
    assert said == f"0 jobs among the {page['read']} of 2000 jobs that were read."


def earlier(task: str) -> bytes:
    """A message of protocol 1, which has its task in the body."""
    message = json.loads(payload("protocol 1"))
    message["headers"] = {}
    body = json.dumps({"task": task, "id": "protocol 1", "args": [], "kwargs": {}})
    message["body"] = base64.b64encode(body.encode()).decode()
    return json.dumps(message).encode()


@pytest.mark.parametrize("asked", ["shop.ñandú", "shop.*", "*andú", "shop.?and[u-ú]"])
def test_a_task_is_found_however_it_is_asked_for_and_written(cli, bench, asked):
    owner = bench.owner(lists=["mail"])
    jobs = [payload("escaped", task="shop.ñandú"), earlier("shop.ñandú")]
    bench.give(owner.owner, "mail", [*jobs, payload("other", task="mail.send")])
    found = cli("jobs", "--task", asked, "--json").json()
    assert sorted(job["id"] for job in found["jobs"]) == ["escaped", "protocol 1"]
    assert (found["more"], found["complete"]) == (0, True)


@pytest.fixture
def runners(bench) -> Any:
    """Two workers; a run of 20 minutes, one of a minute, one whose start is not known yet, and a
    job that waits."""
    now = bench.database.server_time() // 1000
    for node, names in (("w1@a", ["new", "minute"]), ("w2@b", ["long", "waits"])):
        owner = bench.owner(node=node, lists=["mail"])
        jobs = bench.give(
            owner.owner,
            "mail",
            [payload(name, task=f"shop.{name}", retries=len(name)) for name in names],
        )
        for job in jobs:
            if b"waits" not in job.payload:
                bench.run_one(job)
        ages = {b"minute": 60, b"long": 1200}
        started = [
            [claim_number(job.claim_id), now - age]
            for job in jobs
            for name, age in ages.items()
            if name in job.payload
        ]
        bench.client.hset(bench.keys.owner_record(owner.owner), "started_jobs", json.dumps(started))
    return now


def ids(cli, *options: str) -> list[str]:
    return [job["id"] for job in cli("jobs", "--json", *options).json()["jobs"]]


def test_the_run_time_selects_and_sorts_jobs(cli, runners):
    found = {job["id"]: job for job in cli("jobs", "--json").json()["jobs"]}
    assert 1200 <= found["long"]["run_time"] < 1300
    assert (found["new"]["run_time"], found["waits"]["run_time"]) == (None, None)
    assert found["long"]["retries"] == len("long")
    assert ids(cli, "--longer", "10m") == ["long"]
    assert ids(cli, "--longer", "30s", "--sort", "run") == ["long", "minute"]
    assert ids(cli, "--longer", "30s", "--state", "reserved") == []
    assert ids(cli, "--longer", "1h") == []
    assert ids(cli, "--sort", "run") == ["long", "minute", "new", "waits"]
    assert ids(cli, "--sort", "claimed") == ["new", "minute", "long", "waits"]
    assert ids(cli, "--sort", "task") == ["long", "minute", "new", "waits"]
    assert ids(cli, "--sort", "task", "--limit", "2") == ["long", "minute"]
    assert "must be an age such as 90" in cli("jobs", "--longer", "soon", code=2).err
    assert "20 min" in cli("jobs", "--sort", "run").out


def test_only_jobs_that_are_shown_are_read_for_conditions_that_need_no_message(cli, crowd, bench):
    bench.client.config_resetstat()
    conditions = "--queue", "mail", "--state", "reserved", "--sort", "claimed"
    found = cli("jobs", "--json", "--limit", "10", *conditions).json()
    assert [job["id"] for job in found["jobs"]] == [f"n{n}" for n in range(11) if n != 7]
    assert (found["more"], found["complete"]) == (240, True), "the landed job is counted as well"
    assert bench.client.info("commandstats")["cmdstat_hget"]["calls"] < 60


def test_the_arguments_are_those_of_the_message(cli, bench):
    owner = bench.owner(lists=["mail"])
    bench.give(owner.owner, "mail", [payload("a", argsrepr="('A-1',)", kwargsrepr="{'n': 1}")])
    [job] = cli("jobs", "--json").json()["jobs"]
    assert (job["args"], job["kwargs"]) == ("('A-1',)", "{'n': 1}")
    assert "('A-1',) {'n': 1}" in cli("jobs", "--wide").out
