"""What can be done from the page to many dead jobs."""

from __future__ import annotations

import re

import pytest
from starlette.testclient import TestClient

from support.forms import key
from support.workers.bench import payload


def post(browser: TestClient, path: str, do: str, *ids: str) -> str:
    data = {"key": key(browser), "do": do, "id": list(ids)}
    answer = browser.post(path, data=data)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_all_that_match_are_put_back_after_a_question(bench, browse):
    for number in range(60):
        bench.killed(payload(f"n{number}", task="shop.note"))
    bench.killed(payload("other", task="shop.charge"))
    browser = browse(read_only=False)
    where = "/dead?task=note&queue=mail"
    assert "Retry all that match…" in browser.get(where).text
    asked = post(browser, where, "retry all")
    assert "Put all dead jobs of task note, queue mail back?" in asked
    assert bench.client.llen("mail") == 0
    assert "Put back 60 of 60 jobs." in post(browser, where, "retry all now")
    assert bench.client.llen("mail") == 60
    assert "shop.charge" in browser.get("/dead").text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", {"shop.a", "shop.b"}),
        ("task=shop.a", {"shop.a"}),
        ("queue=ma*", {"shop.a", "shop.b"}),
        ("queue=other", set()),
        ("reason=nothing+like+it", set()),
    ],
)
def test_dead_jobs_are_found_by_task_queue_and_reason(bench, browse, query, names):
    for task in ("shop.a", "shop.b"):
        bench.killed(payload(task, task=task))
    page = browse().get(f"/dead?{query}").text
    assert set(re.findall(r"<b>(shop\.\w)</b>", page)) == names


def test_a_page_that_changes_nothing_retries_no_job(browse):
    browser = browse()
    assert browser.post("/dead", data={"do": "retry all now", "id": "x"}).status_code == 403
    assert browse(read_only=False).post("/dead", data={"do": "retry all now"}).status_code == 403
