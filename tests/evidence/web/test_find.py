"""The search of the page over all states of jobs."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from celery_superfetch.model.job import digest
from celery_superfetch.store import job_search
from support.forms import EVIL, Tags
from support.workers.bench import payload


def test_a_job_that_waits_is_found_by_its_task_from_each_view(bench, browse):
    bench.owner(node="w1@host", lists=["mail"])
    bench.push("mail", payload("waits", task="shop.pack"))
    bench.killed(payload("dead", task="shop.pack"))
    browser = browse()
    for view in ("/", "/jobs", "/jobs/nowhere"):
        assert 'action="./find"' in (text := browser.get(view).text) or 'action="../find"' in text
    empty = browser.get("/jobs?state=running&task=shop.pack").text
    assert 'find?text=shop.pack"' in empty, "the filter of one state leads to the search of all"
    page = browser.get("/find?text=pack").text
    assert "2 jobs found: 1 waiting, 1 dead." in page
    assert 'jobs/waits"' in page
    assert "dead/" in page
    assert '<td data-label="State">Waiting' in page
    assert "Enter a task id" in browser.get("/find").text
    assert "No job was found." in browser.get("/find?text=nowhere").text


@pytest.mark.parametrize("text", [EVIL, '"', "%", "*", "x" * 300, "\\"])
def test_no_text_and_no_job_is_markup(bench, browse, text):
    bench.push("mail", payload(EVIL, task=EVIL, argsrepr=EVIL))
    bench.owner(lists=["mail"])
    answer = browse().get(f"/find?text={quote(text)}")
    assert answer.status_code == 200
    tags = Tags(answer.text)
    assert (tags.count["script"], tags.count["img"]) == (1, 0)


def test_secrets_are_hidden_and_a_stranger_finds_nothing(bench, browse):
    bench.owner(lists=["mail"])
    bench.push("mail", payload("x", task="shop.unknown", kwargsrepr="{'apiToken': 'S3CRET'}"))
    assert "S3CRET" not in browse().get("/find?text=shop.unknown").text
    assert "S3CRET" in browse(hide=[]).get("/find?text=shop.unknown").text, "the control"
    assert browse(token="correct-horse-battery").get("/find?text=x").status_code == 401


def test_a_job_with_a_long_id_has_a_page(bench, browse):
    bench.owner(lists=["mail"])
    bench.push("mail", payload("x" * 300))
    assert browse().get(f"/jobs/{'x' * 300}").status_code == 200
    assert browse().get(f"/jobs/{'x' * 299}").status_code == 404


def test_a_text_that_no_name_can_have_is_refused_and_not_cut(bench, browse):
    bench.push("mail", payload("x" * 300))
    answer = browse().get(f"/find?text={'x' * 5000}")
    assert answer.status_code == 400
    assert "must have 300 characters at most, got 5000" in answer.text


def test_the_page_says_that_more_jobs_may_match(bench, browse, monkeypatch):
    bench.owner(lists=["mail"])
    bench.push("mail", *(payload(n) for n in range(30)))
    assert "More may match" not in browse().get(f"/find?text={digest(payload(0))}").text
    monkeypatch.setattr(job_search, "LIST_SEARCHED", 20)
    page = browse().get(f"/find?text={digest(payload(0))}").text
    assert "1 job found: 1 waiting. More may match: not all jobs were searched." in page
