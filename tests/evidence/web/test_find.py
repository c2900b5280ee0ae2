"""The search of the page over all states of jobs."""

from __future__ import annotations

from urllib.parse import quote

import pytest

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


@pytest.mark.parametrize("text", [EVIL, '"', "%", "*", "x" * 5000, "\\"])
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
