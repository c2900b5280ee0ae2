"""The page of one job: what it shows, what it hides, and what its address may be."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from celery_superfetch.model.job import digest
from support.forms import EVIL, Tags, key
from support.workers.bench import payload

SECRET = "4929-S3CRET"


def job_with_steps(name: str, **headers: Any) -> bytes:
    """A message with each kind of next step, whose tasks have evil names."""
    message = json.loads(payload(name, **headers))
    step = {"task": EVIL}
    embed = {"callbacks": [step], "errbacks": [step], "chain": [step, {"task": "shop.next"}]}
    body = json.dumps([[], {}, {**embed, "chord": step}])
    message["body"] = base64.b64encode(body.encode()).decode()
    return json.dumps(message).encode()


def test_a_link_of_the_list_leads_to_the_page_of_a_job(bench, browse):
    owner = bench.owner(node="w1@host", lists=["mail"])
    odd = payload("../dead")
    bench.give(owner, "mail", [job_with_steps("an-id"), odd])
    browser = browse()
    listed = browser.get("/jobs?state=reserved").text
    assert 'jobs/an-id"' in listed
    assert f'jobs/{digest(odd)}"' in listed, "its id would lead elsewhere"
    page = browser.get("/jobs/an-id").text
    assert "Reserved" in page
    assert "shop.next, " in page, "the next step first"
    assert "grep -F -- an-id LOG" in page
    assert "../dead" in browser.get(f"/jobs/{digest(odd)}").text


def test_a_job_that_is_nowhere_is_404_with_what_was_searched(bench, browse):
    bench.push("mail", payload("other"))
    bench.owner(lists=["mail"])
    for id in ("nowhere", "0" * 40, "x" * 5000, "%22", "%00", "..%2fdead", quote(EVIL)):
        answer = browse().get(f"/jobs/{id}")
        assert answer.status_code == 404, id
    answer = browse().get("/jobs/nowhere")
    assert "No job with this id was found" in answer.text
    assert "1 waiting" in answer.text


@pytest.mark.parametrize("place", ["claimed", "waiting", "dead"])
def test_nothing_that_a_message_says_is_markup(bench, browse, place):
    headers = dict.fromkeys(
        ("root_id", "parent_id", "group", "origin", "expires", "argsrepr"), EVIL
    )
    raw = job_with_steps("an-id", task=EVIL, **headers, timelimit=[EVIL, EVIL])
    owner = bench.owner(node=EVIL, lists=["mail"])
    entry = {"owner": f"{EVIL}|1|x", "reason": EVIL, "strike": EVIL, "at": 1}
    if place == "claimed":
        bench.give(owner, "mail", [raw])
        bench.client.hset(bench.keys.history(digest(raw)), "history", json.dumps([entry]))
    elif place == "waiting":
        bench.push("mail", raw)
    else:
        bench.killed(raw, reason=EVIL)
    answer = browse(read_only=False).get("/jobs/an-id")
    assert answer.status_code == 200
    tags = Tags(answer.text)
    assert tags.count["script"] == 1
    assert tags.count["img"] == 0
    assert not {name for name in tags.attributes if name.startswith("on")}


@pytest.mark.parametrize("place", ["claimed", "dead"])
def test_what_is_hidden_of_a_dead_job_is_hidden_of_each(app, bench, browse, place):
    @app.task(name="shop.pay", shared=False)
    def pay(order: str, card: str) -> None: ...

    texts = {"argsrepr": f"('A-1', '{SECRET}')", "kwargsrepr": "{'apiKey': 'k3y-value'}"}
    raw = payload("an-id", task="shop.pay", **texts)
    entry = {"owner": "a|1|x", "reason": f"card {SECRET} was declined: k3y-value", "at": 1}
    if place == "claimed":
        bench.give(bench.owner(lists=["mail"]), "mail", [raw])
        bench.client.hset(bench.keys.history(digest(raw)), "history", json.dumps([entry]))
    else:
        bench.killed(raw, reason=entry["reason"])
    page = browse().get("/jobs/an-id").text
    assert "A-1" in page
    assert "was declined" in page
    assert SECRET not in page
    assert "k3y-value" not in page
    assert SECRET in browse(hide=[]).get("/jobs/an-id").text, "the control"


def test_its_forms_are_those_of_the_list_and_a_read_only_page_has_none(bench, browse):
    bench.run_one(bench.give(bench.owner(lists=["mail"]), "mail", [payload("an-id")])[0])
    assert 'value="terminate"' not in browse().get("/jobs/an-id").text
    browser = browse(read_only=False)
    page = browser.get("/jobs/an-id").text
    assert 'value="terminate"' in page
    assert f'value="{key(browser)}"' in page
    asked = browser.post(
        "/jobs?state=running", data={"key": key(browser), "id": "an-id", "do": "terminate"}
    )
    assert "Revoke and terminate 1 job?" in asked.text
    assert browser.post("/jobs/an-id").status_code == 405
    assert browse(token="correct-horse-battery").get("/jobs/an-id").status_code == 401


def test_a_job_is_searched_for_once_for_all_browsers(bench, browse):
    bench.give(bench.owner(lists=["mail"]), "mail", [payload("an-id")])
    browser = browse()
    browser.get("/")  # it connects
    bench.client.config_resetstat()
    assert [browser.get("/jobs/an-id").status_code for _ in range(20)] == [200] * 20
    stats = bench.client.info("commandstats")
    assert stats["cmdstat_time"]["calls"] <= 3, "for a second at least, one search answers all"
