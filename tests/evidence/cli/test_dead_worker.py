"""`celery superfetch workers show`: a worker, or the end of one that is not registered any more."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from celery_superfetch.model.job import digest
from support.workers.bench import payload


def show(cli: Any, name: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = cli("workers", "show", name, "--json", code=code).json()
    return document


def test_a_living_worker_is_shown_with_its_jobs_and_slots(cli, bench):
    owner = bench.owner(node="w1@a", lists=["mail"], pool_name="prefork", slots=1)
    [job] = bench.give(owner, "mail", [payload("runs")])
    bench.run_one(job)
    assert show(cli, "w1@a")["worker"]["owner"] == show(cli, owner.owner)["worker"]["owner"]
    out = cli("workers", "show", "w1@a").out
    assert "w1@a: running, 1 of 1, full running" not in out
    assert "w1@a: running, 1 of 1 slots running (full), 0 reserved" in out
    assert "shop.note" in out


def test_a_dead_worker_is_shown_with_its_end_and_its_jobs(cli, bench):
    raws = [payload("runs"), payload("reserved"), payload("ends")]
    lost = bench.dead_owner(raws, running=raws[:1], node="w1@a")
    bench.reaper().reap()
    bench.client.lrem("mail", 1, raws[2])  # it has run since
    bench.owner(node="w2@b", lists=["mail"])
    found = show(cli, "w1@a")
    death = found["death"]
    assert found["worker"] is None
    assert (death["owner"], death["reason"]) == (lost.owner, "its process is gone")
    assert death["jobs_left"] == 3
    jobs = {job["id"]: (job["state"], job["strike"]) for job in death["jobs"]}
    assert jobs == {"runs": ("waiting", "exact"), "reserved": ("waiting", None)}
    out = cli("workers", "show", lost.owner).out
    assert re.search(r"It died \S+ s ago \(its process is gone\): 3 jobs recovered\.", out)
    assert "1 job of these is not listed below" in out
    [dead] = bench.dead_set.page(0, 1) or [None]
    assert dead is None, "the control: none was dead-lettered"


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_strike_is_that_of_the_workers_end(cli, bench, is_dead):
    """Before, the worker had lost a pool process in which the job ran: it was the first of the
    worker's entries in the history, and was shown."""
    raw = payload("job")
    lost = bench.dead_owner([raw, payload("other")], running=[raw, payload("other")], node="w1@a")
    earlier = {"owner": lost.owner, "strike": "exact", "reason": "pool process lost", "claim": "1"}
    history = bench.keys.history(digest(raw))
    bench.client.hset(history, mapping={"recoveries": 1, "history": json.dumps([earlier])})
    bench.client.set(bench.keys.has_history, 1)
    bench.reaper().reap()
    if is_dead:
        bench.client.delete("mail", bench.keys.probation("mail"))
        bench.killed(raw)
    jobs = {job["id"]: job["strike"] for job in show(cli, "w1@a")["death"]["jobs"]}
    assert jobs["job"] == "suspect"


def test_a_dead_job_is_named_for_each_worker_that_it_killed(cli, bench):
    raw = payload("pill")
    for number in range(2):
        bench.dead_owner([raw], running=[raw], node=f"w{number}@a")
        bench.reaper().reap()
        bench.client.delete("mail", bench.keys.probation("mail"))
    bench.killed(raw)
    for number in range(2):
        [job] = show(cli, f"w{number}@a")["death"]["jobs"]
        assert (job["id"], job["state"]) == ("pill", "dead")


def test_its_dead_jobs_are_named(cli, bench):
    [dead] = bench.killed(payload("pill"))
    bench.stats.record_deaths(
        [
            (
                0.0,
                {
                    "owner": dead.owner,
                    "node": "w1@a",
                    "reason": "gone",
                    "killed": 1,
                    "last_heartbeat": bench.database.server_time() - 1000,
                },
            )
        ]
    )
    [job] = show(cli, "w1@a")["death"]["jobs"]
    assert (job["state"], job["dead_id"]) == ("dead", dead.id)


def test_of_a_worker_without_a_record_it_says_that_nothing_is_known(cli, bench):
    assert show(cli, "nobody@nowhere", code=1)["death"] is None
    out = cli("workers", "show", "nobody@nowhere", code=1).out
    assert "not registered any more" in out
    assert "jobs --state struck" in out


def test_the_search_for_its_jobs_is_bounded(cli, bench, monkeypatch):
    from celery_superfetch.console import dead_worker

    monkeypatch.setattr(dead_worker, "JOBS_READ", 50)
    raws = [payload(f"n{n}") for n in range(3)]
    bench.dead_owner(raws, node="w1@a")
    bench.reaper().reap()
    bench.push("mail", *(payload(f"w{n}", pad="x" * 1000) for n in range(2000)))
    bench.client.config_resetstat()
    assert len(show(cli, "w1@a")["death"]["jobs"]) == 3, "recovered jobs are the next ones"
    assert bench.client.info()["total_net_output_bytes"] < 600_000
