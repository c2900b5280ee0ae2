"""Two running jobs of one task id, and of the same bytes: each is ended alone, by its handle."""

from __future__ import annotations

import re

import pytest

from celery_superfetch.console import jobs
from celery_superfetch.console.web import create_app
from celery_superfetch.inspector import Inspector
from support.forms import browser_at, key
from support.waiting import eventually
from support.workers.bench import payload


def twins(worker, app, client, db) -> None:
    """Start a worker that runs two jobs of one message."""
    app.send_task("shop.hold", ("twin",), task_id="twin")
    [raw] = client.lrange("celery", 0, -1)
    client.lpush("celery", raw)
    worker(concurrency=2)
    eventually(lambda: db.running() == ["twin", "twin"])


def test_the_page_ends_one_of_two_running_jobs_of_one_id(worker, app, client, db, make_app):
    """It could end neither: "fits 2 jobs"."""
    twins(worker, app, client, db)
    browser = browser_at(create_app(make_app(), read_only=False))
    page = browser.get("/jobs?state=running").text
    first, second = re.findall(r'name="id" value="([0-9a-f]{40} twin)"', page)
    assert first != second
    form = {"do": "kill now", "id": first, "key": key(browser)}
    done = browser.post("/jobs?state=running", data=form).text
    assert "Killed 1 of 1 job" in done
    eventually(lambda: db.running() == ["twin"])
    assert [record["task_id"] for record in db.dead()] == ["twin"]


def test_the_command_ends_one_of_two_running_jobs_of_one_id(worker, app, client, db, cli):
    twins(worker, app, client, db)
    refused = cli("jobs", "kill", "twin", "--yes", code=1)
    handles = re.findall(r"[0-9a-f]{40}", refused.err)
    assert "fits 2 jobs" in refused.err
    assert len({*handles}) == 2
    cli("jobs", "kill", handles[0], "--yes")
    eventually(lambda: db.running() == ["twin"])


def test_a_job_that_has_another_s_handle_as_its_id_does_not_hide_it(bench, make_app):
    """A producer chooses the id of its own jobs, and reads the handles of others on the page."""
    owner = bench.owner(lists=["mail"])
    [job] = bench.give(owner, "mail", [payload("mine")])
    handle = jobs.handle_of(owner.owner, job.claim_id)
    bench.give(owner, "mail", [payload(handle)])
    look = jobs.Look(Inspector(bench.database), jobs.Which())
    assert [found["id"] for found in look.named([handle])[handle]] == ["mine"]


def test_the_control_an_id_alone_fits_both(bench, monkeypatch):
    monkeypatch.setattr(jobs, "IDS", ("id",))
    owner = bench.owner(lists=["mail"])
    bench.give(owner, "mail", [payload("twin"), payload("twin")])
    [found] = jobs.Look(Inspector(bench.database), jobs.Which()).named(["twin"]).values()
    assert len(found) == 2


@pytest.mark.parametrize("name", ["", "nothing"])
def test_a_name_of_nothing_has_no_job(bench, name):
    bench.give(bench.owner(lists=["mail"]), "mail", [payload("a")])
    assert jobs.Look(Inspector(bench.database), jobs.Which()).named([name]) == {name: []}
