"""`celery superfetch jobs show`: one job, wherever it is, and what is known of it."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from celery import chain, chord

from celery_superfetch.model.job import CLAIMS_A_SECOND, claim_number, digest
from celery_superfetch.store import job_search
from support.waiting import eventually
from support.workers.bench import elsewhere, payload

UUID = "330d32dc-00c0-4cd5-8a0e-6e3c3a2fb6a4"


def show(cli: Any, id: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = cli("jobs", "show", id, "--json", code=code).json()
    return document


def states(cli: Any, id: str) -> list[str]:
    return [job["state"] for job in show(cli, id)["jobs"]]


def test_a_job_is_found_wherever_it_is(cli, bench):
    raw = payload(UUID)
    owner = bench.owner(lists=["mail"], node="w1@host")
    [job] = bench.give(owner, "mail", [raw])
    assert states(cli, UUID) == states(cli, digest(raw)) == ["reserved"]
    bench.run_one(job)
    assert states(cli, UUID) == ["running"]
    bench.client.delete(bench.keys.private(owner.owner))
    bench.land(owner, "mail", raw)
    assert states(cli, UUID) == ["reserved"]
    bench.client.delete(bench.keys.landing(owner.owner, "mail"))
    bench.push("mail", raw)
    assert states(cli, UUID) == states(cli, digest(raw)) == ["waiting"]
    bench.client.delete("mail")
    bench.client.lpush(bench.keys.probation("mail"), raw)
    bench.client.sadd(bench.keys.on_probation, "mail")
    assert states(cli, UUID) == ["probation"]
    bench.client.delete(bench.keys.probation("mail"))
    line = json.dumps(UUID).encode() + b" nonce-1\n"
    bench.client.zadd(bench.keys.parked_of("mail"), {line + raw: 5e12})
    bench.client.zadd(bench.keys.parked, {"mail": 5e12})
    assert states(cli, UUID) == states(cli, digest(raw)) == ["parked"]
    bench.client.delete(bench.keys.parked_of("mail"))
    [dead] = bench.killed(raw)
    assert states(cli, UUID) == states(cli, dead.id) == ["dead"]


def test_a_job_is_not_taken_for_its_children_or_its_group(cli, bench):
    owner = bench.owner(lists=["mail"])
    flow = {"root_id": UUID, "parent_id": UUID, "group": UUID, "argsrepr": f"('{UUID}',)"}
    bench.give(owner, "mail", [payload(f"child-{n}", **flow) for n in range(50)])
    bench.push("mail", payload("waits", **flow))
    bench.killed(payload("dead", **flow))
    nothing = show(cli, UUID, code=1)
    assert nothing["jobs"] == []
    assert {place["place"]: place["examined"] for place in nothing["examined"]} == {
        "in flight": 50,
        "scheduled": 0,
        "on probation": 0,
        "waiting": 1,
        "in the dead set": 1,
    }
    bench.give(owner, "mail", [payload(UUID, **flow)])
    assert states(cli, UUID) == ["reserved"]


def test_a_message_of_another_client_or_protocol_is_found(cli, bench):
    compact = json.dumps(json.loads(payload("compact")), separators=(",", ":")).encode()
    message = json.loads(payload("first"))
    message["headers"] = {}
    body = json.dumps({"task": "shop.old", "id": "first", "args": [1], "kwargs": {}})
    message["body"] = base64.b64encode(body.encode()).decode()
    owner = bench.owner(lists=["mail"])
    bench.give(owner, "mail", [compact, json.dumps(message).encode(), b"no message at all"])
    assert states(cli, "compact") == ["reserved"]
    [old] = show(cli, "first")["jobs"]
    assert (old["task"], old["args"]) == ("shop.old", "[1]")
    [junk] = show(cli, digest(b"no message at all"))["jobs"]
    assert (junk["task"], junk["task_id"]) == (None, None)


def test_a_search_is_bounded_and_says_so(cli, bench, monkeypatch):
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 40)
    monkeypatch.setattr(job_search, "CLAIMS_SEARCHED", 30)
    owner = bench.owner(lists=["mail"])
    bench.give(owner, "mail", [payload(f"n{n}") for n in range(60)])
    bench.push("mail", *(payload(f"w{n}") for n in range(60)))
    assert states(cli, "n29") == ["reserved"]
    assert states(cli, "w39") == ["waiting"]
    told = cli("jobs", "show", "n59", code=1).out
    assert "No job with this id was found" in told
    assert "30 of 60 in flight" in told
    assert "40 of 60 waiting" in told
    assert "It may be one of the jobs that were not searched." in told
    assert "has ended" not in told


def park(bench: Any, queue_list: str, *jobs: str) -> None:
    """Park jobs with these task ids, each later than the one before."""
    members = {
        json.dumps(id).encode() + b" nonce\n" + payload(id): 5e12 + number
        for number, id in enumerate(jobs)
    }
    bench.client.zadd(bench.keys.parked_of(queue_list), members)
    bench.client.zadd(bench.keys.parked, {queue_list: 5e12})


def test_parked_jobs_of_any_number_of_queue_lists_are_searched(cli, bench):
    """Each list counted as if it had as many jobs as one command scans: those after the 200th were
    not searched, and counted as searched."""
    for number in range(450):
        park(bench, f"mail-{number:03}", f"j{number}")
    assert states(cli, "j449") == ["parked"]
    assert "450 scheduled" in cli("jobs", "show", "j999", code=1).out


def test_parked_jobs_that_were_not_searched_are_not_counted_as_searched(cli, bench, monkeypatch):
    monkeypatch.setattr(job_search, "PARKED_SEARCHED", 100)
    monkeypatch.setattr(job_search, "PARKED_LISTS_AT_ONCE", 50)
    for number in range(150):
        park(bench, f"mail-{number:03}", f"j{number}")
    told = cli("jobs", "show", "j999", code=1).out
    assert "100 of 150 scheduled" in told
    assert "It may be one of the jobs that were not searched." in told


def test_a_parked_job_is_searched_for_by_its_digest_among_the_next_ones(cli, bench, monkeypatch):
    """Only its task id is in its name."""
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 40)
    park(bench, "mail", *(f"j{n}" for n in range(60)))
    assert states(cli, digest(payload("j39"))) == ["parked"]
    told = cli("jobs", "show", digest(payload("j59")), code=1).out
    assert "40 of 60 scheduled" in told
    assert "It may be one of the jobs that were not searched." in told
    assert states(cli, "j59") == ["parked"], "the control: by its id all are searched"


def test_a_scheduled_job_beyond_the_next_ones_is_not_taken_for_moved(cli, bench, monkeypatch):
    """Its copy on the queue was found, and the scheduled job was not shown: it was looked for among
    the next jobs alone."""
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 40)
    bench.owner(lists=["mail"])
    park(bench, "mail", *(f"j{n}" for n in range(60)))
    bench.push("mail", payload("j59"), payload("j20"))
    assert states(cli, "j59") == ["parked", "waiting"]
    assert states(cli, "j20") == ["parked", "waiting"], "the control: it is one of the next"
    assert states(cli, digest(payload("j20"))) == ["parked", "waiting"]


def test_jobs_that_have_landed_count_as_searched(cli, bench):
    owner = bench.owner(lists=["mail"])
    bench.give(owner, "mail", [payload("claimed")])
    bench.land(owner, "mail", payload("one"), payload("two"))
    assert "3 in flight" in cli("jobs", "show", "nowhere", code=1).out


@pytest.mark.parametrize("is_new_owner", [False, True])
@pytest.mark.parametrize("how", ["claimed", "landed"])
def test_a_job_that_is_claimed_during_the_search_is_found(
    cli, bench, monkeypatch, how, is_new_owner
):
    """It comes to its owner after that was searched, and leaves its queue before that is."""
    owner = bench.owner(lists=["mail"])
    bench.push("mail", payload("x"))
    in_lists = job_search.JobSearch.in_lists

    def claim_and_search(self: Any, sought: Any, places: Any) -> Any:
        if places and places[0].state == "waiting" and bench.queue():
            claims = bench.owner(elsewhere("web-2"), lists=["mail"]) if is_new_owner else owner
            bench.client.delete("mail")
            if how == "landed":
                bench.land(claims, "mail", payload("x"))
            else:
                bench.give(claims, "mail", [payload("x")])
        return in_lists(self, sought, places)

    monkeypatch.setattr(job_search.JobSearch, "in_lists", claim_and_search)
    assert states(cli, "x") == ["reserved"]
    assert bench.queue() == []


def test_a_long_id_is_not_cut(cli, bench):
    id = "x" * 300
    bench.owner(lists=["mail"])
    bench.push("mail", payload(id))
    assert states(cli, id) == ["waiting"]


def test_many_jobs_cost_some_scripts_and_are_not_sent(cli, bench):
    for number in range(10):
        owner = bench.owner(elsewhere(f"web-{number}"), lists=["mail"])
        bench.give(owner, "mail", [payload(f"{number}-{n}", pad="x" * 500) for n in range(200)])
    bench.client.config_resetstat()
    assert states(cli, "9-199") == ["reserved"]
    stats = bench.client.info()
    assert stats["total_net_output_bytes"] < 400_000, "2,000 messages have more than 1.6 MB"


def test_its_history_says_what_is_recorded_and_what_is_not(cli, bench):
    raw = payload("x", retries=2, expires="2030-01-01T00:00:00+00:00", timelimit=[60, 30])
    lost = bench.dead_owner([raw], running=[raw], node="w1@a")
    bench.reaper().reap()
    hour_ago = (bench.database.server_time() // 1000 - 3600) * CLAIMS_A_SECOND
    bench.client.hset(bench.keys.history(digest(raw)), "first_claim", hour_ago)
    owner = bench.owner(node="w2@b", lists=["mail"])
    bench.client.delete("mail")
    [job] = bench.give(owner, "mail", [raw])
    bench.run_one(job)
    [found] = show(cli, "x")["jobs"]
    first, death, claimed, started = found["events"]
    assert (first["event"], first["owner"]) == ("claimed for the first time", "")
    assert first["at"] < death["at"]
    assert death["event"] == "worker w1@a died, strike (exact)"
    assert (death["owner"], death["host"]) == (lost.owner, lost.process.host)
    assert death["reason"]
    assert (claimed["event"], claimed["owner"]) == ("claimed", owner.owner)
    assert (started["event"], started["at"]) == ("started", None), "it has just begun"
    assert (found["strikes"], found["recoveries"], found["retries"]) == (1, 1, 2)
    assert found["expires"] == "2030-01-01T00:00:00+00:00"
    before, now = found["logs"]
    assert (before["owner"], before["node"]) == (lost.owner, "w1@a")
    assert (before["from"], before["to"]) == (first["at"], death["at"])
    assert (now["owner"], now["from"], now["to"]) == (owner.owner, claimed["at"], None)
    assert found["grep"] == "grep -F -- x LOG"

    at = bench.database.server_time() // 1000 - 90
    known = json.dumps([[claim_number(job.claim_id), at]])
    bench.client.hset(bench.keys.owner_record(owner.owner), "started_jobs", known)
    text = cli("jobs", "show", "x").out
    assert "running, for 9" in text
    assert "worker w1@a died, strike (exact)" in text
    assert "not recorded" in text, "the time of a claim without a clock in its number"
    assert re.search(r"from \d{4}-\S+ \S+ UTC to \d{4}-\S+ \S+ UTC: the log of w1@a", text)
    assert "the log of w2@b" in text

    [dead] = bench.killed(raw, reason="it exits")
    [_, last] = show(cli, dead.id)["jobs"]
    assert last["events"][-1]["event"] == "moved to the dead set"
    assert last["events"][-1]["reason"] == "it exits"


def test_the_workflow_of_a_real_job(cli, worker, app, shop, ledger):
    worker(concurrency=1)
    steps = chain(
        shop.hold.si("first").set(link_error=shop.note.si("error")),
        shop.note.si("second"),
        chord([shop.note.si("a"), shop.note.si("b")], shop.note.si("body")),
    )
    sent = steps.apply_async()
    root = sent
    while root.parent is not None:
        root = root.parent
    eventually(lambda: ledger.starts().get("first"))
    [job] = show(cli, root.id)["jobs"]
    flow = job["workflow"]
    assert flow["root_id"] == root.id
    assert flow["next"]["tasks"][0] == "shop.note"
    assert flow["next"]["count"] == 2
    assert flow["errbacks"]["tasks"] == ["shop.note"]
    assert "Next steps:" in cli("jobs", "show", root.id).out
    ledger.release()


@pytest.mark.parametrize("id", ["", "x" * 5000, "*", "[", '"', "\\", "../etc", "\ud800", "%s"])
def test_an_id_that_no_job_has_is_searched_for_without_an_error(cli, bench, id):
    bench.give(bench.owner(lists=["mail"]), "mail", [payload("a")])
    assert show(cli, id, code=1)["jobs"] == []
