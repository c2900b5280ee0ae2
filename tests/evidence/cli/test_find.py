"""`celery superfetch jobs find`: the jobs of all states by a part of a name, and its cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_superfetch.model.job import digest
from celery_superfetch.store import job_search
from support.workers.bench import elsewhere, payload

UUID = "330d32dc-00c0-4cd5-8a0e-6e3c3a2fb6a4"


def find(cli: Any, text: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = cli("jobs", "find", text, "--json", code=code).json()
    return document


def states_by_id(cli: Any, text: str) -> dict[str, str]:
    return {job["id"]: job["state"] for job in find(cli, text)["jobs"]}


def test_one_search_finds_the_jobs_of_every_state(cli, bench, db):
    owner = bench.owner(lists=["mail"], node="w1@host")
    reserved, runs, later = (
        payload(name, task="shop.Pack") for name in ("reserved", "runs", "later")
    )
    _, job, parked = bench.give(owner, "mail", [reserved, runs, later])
    bench.run_one(job)
    bench.run(bench.parked.park({parked: bench.database.server_time() + 3_600_000}))
    bench.push("mail", payload("waits", task="shop.Pack"), payload("other"))
    db.suspect(payload("suspect", task="shop.Pack"), "mail")
    bench.killed(payload("dead", task="shop.Pack"), payload("dead other"))
    assert states_by_id(cli, "shop.pack") == {
        "reserved": "reserved",
        "runs": "running",
        "later": "parked",
        "waits": "waiting",
        "suspect": "probation",
        "dead": "dead",
    }
    assert states_by_id(cli, "*pack*").keys() == states_by_id(cli, "PACK").keys()
    assert states_by_id(cli, "wai") == {"waits": "waiting"}, "a part of an id"
    out = cli("jobs", "find", "pack").out
    assert "6 jobs found: 1 running, 1 reserved, 1 on probation, 1 scheduled, 1 waiting" in out
    assert "shop.Pack" in out
    assert "Searched: 2 in flight" in out
    assert "No job was found" in cli("jobs", "find", "nothing of this name", code=1).out


def test_a_whole_id_finds_what_the_page_of_a_job_finds(cli, bench):
    raw = payload(UUID)
    bench.owner(lists=["mail"])
    bench.push("mail", raw)
    assert states_by_id(cli, UUID) == states_by_id(cli, digest(raw)) == {UUID: "waiting"}
    bench.push("mail", payload("child", parent_id=UUID, argsrepr=f'("id": "{UUID}")'))
    assert states_by_id(cli, UUID) == {UUID: "waiting"}


def test_neither_arguments_nor_other_headers_are_searched(cli, bench):
    odd = {"argsrepr": '{"task": "secret-word"}', "root_id": "secret-word", "group": "secret-word"}
    bench.owner(lists=["mail"])
    bench.push("mail", payload("x", kwargsrepr='{"id": "secret-word"}', **odd))
    assert find(cli, "secret-word", code=1)["jobs"] == []
    assert states_by_id(cli, "x") == {"x": "waiting"}, "the control"


def test_a_search_for_a_part_is_bounded_and_says_so(cli, bench, monkeypatch):
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 40)
    bench.owner(lists=["mail"])
    bench.push("mail", *(payload(f"w{n}", task="shop.pack") for n in range(60)), payload("last"))
    found = find(cli, "pack")
    names = [job["id"] for job in found["jobs"]]
    assert names == [f"w{n}" for n in range(job_search.FOUND_MOST)], "the next to be claimed"
    assert found["more"]
    assert "More may match" in cli("jobs", "find", "pack").out
    told = cli("jobs", "find", "last", code=1).out
    assert "40 of 61 waiting" in told


def waiting_jobs(bench: Any, *jobs: bytes) -> None:
    bench.owner(lists=["mail"])
    bench.push("mail", *jobs)


@pytest.mark.parametrize("text", [UUID, digest(payload(UUID)), UUID[:9]])
def test_more_jobs_may_match_if_not_all_were_searched(cli, bench, monkeypatch, text):
    """A whole id said that no other can match, whatever was left out."""
    waiting_jobs(bench, payload(UUID), *(payload(f"w{n}") for n in range(60)))
    found = find(cli, text)
    assert (len(found["jobs"]), found["more"]) == (1, False), "the control"
    assert "More may match" not in cli("jobs", "find", text).out
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 40)
    found = find(cli, text)
    assert (len(found["jobs"]), found["more"]) == (1, True)
    out = cli("jobs", "find", text).out
    assert "1 job found: 1 waiting. More may match: not all jobs were searched." in out
    assert cli("jobs", "show", text if text != UUID[:9] else UUID, "--json").json()["more"]


#: Each limit: its name, a value, and where it cuts a search: among dead jobs (True), or others.
CUTS = {
    "claims": ("CLAIMS_SEARCHED", 2, False),
    "lists": ("LIST_SEARCHED", 2, False),
    # Of claims and of dead jobs the next script examines the others.
    "bytes": ("SEARCH_MAX_BYTES", 2 * len(payload("d2")), False),
    "scheduled": ("PARKED_SEARCHED", 1, False),
    "dead": ("DEAD_SEARCHED", 2, True),
    "found": ("FOUND_MOST", 2, False, True),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("is_dead", [False, True])
def test_each_limit_of_a_search_is_one_that_it_says(cli, bench, monkeypatch, cut, is_dead):
    name, limit, *where = CUTS[cut]
    if is_dead:
        bench.killed(*(payload(f"d{n}") for n in range(3)))
    else:
        owner = bench.owner(lists=["mail"])
        given = bench.give(owner, "mail", [payload(f"j{n}") for n in range(6)])
        due = bench.database.server_time() + 3_600_000
        for n, job in enumerate(given[3:]):
            bench.client.hset(bench.keys.private(owner.owner), job.claim_id, job.payload)
            [parked] = bench.give(owner, f"mail{n}", [job.payload])
            bench.run(bench.parked.park({parked: due}))
            bench.client.hdel(bench.keys.private(owner.owner), job.claim_id, f"w{job.claim_id}")
        bench.push("mail", *(payload(f"w{n}") for n in range(3)))
    monkeypatch.setattr(job_search, "PARKED_LISTS_AT_ONCE", 1)
    monkeypatch.setattr(job_search, "JOBS_PER_COMMAND", 1)
    text = UUID if cut == "scheduled" else "shop.note"
    assert not find(cli, text, code=int(cut == "scheduled"))["more"], "the control"
    monkeypatch.setattr(job_search, name, limit)
    assert find(cli, text, code=int(cut == "scheduled"))["more"] == (is_dead in where)


@pytest.mark.parametrize("to", ["waiting", "probation", "parked", "dead"])
def test_a_job_that_moves_during_the_search_is_listed_once_where_it_is(
    cli, bench, db, monkeypatch, to
):
    """It was found in flight, and again where it had been requeued to meanwhile."""
    owner = bench.owner(lists=["mail"])
    job, *_ = bench.give(owner, "mail", [payload("moves"), payload("stays")])
    bench.push("mail", payload("waits"))
    in_claims = job_search.JobSearch.in_claims

    def search_and_move(self: Any, sought: Any, claims: Any) -> Any:
        result = in_claims(self, sought, claims)
        if to == "waiting":
            bench.requeue(job)
        elif to == "parked":
            bench.run(bench.parked.park({job: bench.database.server_time() + 3_600_000}))
        elif to == "dead":
            bench.run(bench.dead_set.kill_call(bench.recovery(job), marked=False, notice=b""))
        else:
            bench.client.delete(bench.keys.private(owner.owner))
            bench.give(owner, "mail", [payload("stays")])
            db.suspect(job.payload, "mail")
        return result

    assert states_by_id(cli, "moves") == {"moves": "reserved"}, "the control"
    monkeypatch.setattr(job_search.JobSearch, "in_claims", search_and_move)
    rows = [(job["id"], job["state"]) for job in find(cli, "shop.note")["jobs"]]
    if to == "waiting":
        assert rows == [("stays", "reserved"), ("moves", "waiting"), ("waits", "waiting")]
    assert sorted(rows) == sorted([("stays", "reserved"), ("moves", to), ("waits", "waiting")])


def test_messages_of_the_same_bytes_are_each_listed(cli, bench):
    """A person can copy a message: a copy that has not moved is no other job's old place."""
    raw = payload("copied")
    waiting_jobs(bench, raw, raw)
    owner = bench.owner(lists=["mail"])
    _, parked = bench.give(owner, "mail", [raw, raw])
    bench.run(bench.parked.park({parked: bench.database.server_time() + 3_600_000}))
    bench.killed(raw)
    states = [job["state"] for job in find(cli, "copied")["jobs"]]
    assert states == ["reserved", "parked", "waiting", "waiting", "dead"]


def test_a_search_reads_some_scripts_and_sends_no_job_that_does_not_match(cli, bench):
    for number in range(10):
        owner = bench.owner(elsewhere(f"web-{number}"), lists=["mail"])
        bench.give(owner, "mail", [payload(f"{number}-{n}", pad="x" * 500) for n in range(200)])
    bench.client.config_resetstat()
    assert states_by_id(cli, "9-199") == {"9-199": "reserved"}
    assert bench.client.info()["total_net_output_bytes"] < 400_000, "2,000 messages have 1.6 MB"


def test_a_message_with_any_number_of_names_costs_no_more_than_its_length(cli, bench):
    message = json.loads(payload("x"))
    message["headers"]["many"] = [{"task": "a" * 20, "id": "b"} for _ in range(20_000)]
    bench.owner(lists=["mail"])
    bench.push("mail", *[json.dumps(message).encode()] * 5)
    bench.client.config_resetstat()
    find(cli, "none", code=1)
    took = bench.client.info("commandstats")["cmdstat_evalsha"]["usec"]
    assert took < 500_000, "4.5 MB of messages"


@pytest.mark.parametrize("text", ["", "*", "%", '"', "\\", "[a", "\ud800", "x" * 300, "-" * 3])
def test_a_text_of_any_kind_is_searched_for_without_an_error(cli, bench, text):
    bench.push("mail", payload("a"))
    args = ("--", text) if text.startswith("-") else (text,)
    assert cli("jobs", "find", "--json", *args, code=1).json()["jobs"] == []


def test_a_text_that_no_name_can_have_is_refused_and_not_cut(cli, bench):
    """It was cut to 200 characters: jobs were found that do not have the whole of it."""
    long = payload("a" + "x" * 299), payload("b" + "ü" * 299)
    waiting_jobs(bench, *long)
    assert states_by_id(cli, "x" * 299) == {"a" + "x" * 299: "waiting"}
    assert find(cli, "a" + "x" * 298 + "y", code=1)["jobs"] == []
    assert states_by_id(cli, "b" + "ü" * 299) == {"b" + "ü" * 299: "waiting"}
    refused = cli("jobs", "find", "x" * 301, code=1)
    assert refused.out == ""
    assert "must have 300 characters at most, got 301: use a part of it" in refused.err


def test_asterisks_alone_are_no_pattern_and_no_sign_that_jobs_have_ended(cli, bench):
    bench.push("mail", payload("a"))
    told = cli("jobs", "find", "*", code=1).out
    assert "jobs` lists all jobs" in told
    assert "ended" not in told


def test_a_part_is_searched_for_in_no_more_bytes_than_allowed(cli, bench, monkeypatch):
    """The last job of the read that reaches the limit is the last that is examined."""
    bench.owner(lists=["mail"])
    bench.push("mail", *(payload(f"w{n}", pad="x" * 1000) for n in range(15)))
    monkeypatch.setattr(job_search, "SEARCH_MAX_BYTES", 3 * len(payload("w0", pad="x" * 1000)))
    assert "3 of 15 waiting" in cli("jobs", "find", "w9", code=1).out
    assert states_by_id(cli, "w2") == {"w2": "waiting"}
