"""The page of one queue: what waits, who serves it, and its pause."""

from __future__ import annotations

import re
import socket
from time import monotonic
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.queue_view import NEXT_JOBS_SHOWN, QUEUE_WORKERS_SHOWN
from celery_superfetch.console.web import create_app
from support.forms import EVIL, browser_at, key
from support.workers.bench import Bench, elsewhere, payload


def post(browser: TestClient, queue: str, do: str, **form: Any) -> Any:
    data = {"key": key(browser), "do": do, **form}
    return browser.post("/queues", params={"name": queue}, data=data)


def test_what_waits_comes_in_the_order_of_claims_without_its_secrets(bench, browse):
    bench.owner(node="w1@host", lists=["mail", "mail\x06\x163"])
    bench.push("mail\x06\x163", *(payload(f"late-{n:02}") for n in range(60)))
    secret = payload("first", kwargsrepr="{'password': 'S3CRET', 'to': 'ann'}", argsrepr="()")
    bench.push("mail", secret, payload("second", retries=3))
    page = browse().get("/queues?name=mail").text
    ids = re.findall(r"<small>((?:first|second|late)[\w-]*)</small>", page)
    assert ids == ["first", "second", *(f"late-{n:02}" for n in range(NEXT_JOBS_SHOWN - 2))]
    assert f"{NEXT_JOBS_SHOWN} of 62 waiting" in page
    assert "S3CRET" not in page
    assert "ann" in page, "the control: the others are shown"
    assert 'data-label="Retries">3<' in page
    assert "Pause…" not in page, "it is read-only"


def test_who_serves_it_and_who_does_not_and_why(bench, browse):
    lists = {"lists": ["mail", "mail\x06\x163"]}
    bench.owner(node="works@host", **lists)
    bench.owner(elsewhere("a"), node="stops@host", state="stopping", **lists)
    bench.owner(elsewhere("b"), node="hangs@host", state="hung", **lists)
    bench.owner(elsewhere("c"), node="left@host", unconsumed=tuple(lists["lists"]), **lists)
    bench.age(bench.owner(elsewhere("d"), node="mute@host", **lists), 20_000)
    bench.owner(elsewhere("e"), node="other@host", lists=["press"])
    page = browse().get("/queues?name=mail").text
    assert "1 of 5 serve it" in page
    for node, why in (
        ("stops@host", "it is stopping"),
        ("left@host", "cancel_consumer"),
        ("mute@host", "no heartbeat for 20 s"),
    ):
        assert re.search(rf"{node}.*?<small>[^<]*{why}", page, re.S), node
    assert page.index("works@host") < page.index("left@host")
    assert "hangs@host" in page
    assert "other@host" not in page
    for n in range(QUEUE_WORKERS_SHOWN):
        bench.owner(elsewhere(f"more-{n}"), node=f"w{n}@host", **lists)
    assert "and 5 more" in browse().get("/queues?name=mail").text


def test_a_queue_is_paused_and_resumed_after_a_question(bench, browse):
    bench.owner(node="w1@host", lists=["a b/c&d"])
    bench.push("a b/c&d", payload(1), payload(2))
    browser = browse(read_only=False)
    overview = browser.get("/").text
    [link] = {*re.findall(r'href="([^"]*queues\?name=a[^"]*)"', overview)}
    page = browser.get(link.replace("&amp;", "&")).text
    assert "<h1>Queue a b/c&amp;d</h1>" in page
    assert "Pause…" in page

    asked = post(browser, "a b/c&d", "pause").text
    assert "Pause queue a b/c&amp;d?" in asked
    assert "1 worker and 2 waiting jobs" in asked
    assert not bench.paused.all(), "nothing has happened yet"
    done = post(browser, "a b/c&d", "pause now").text
    assert "Paused: workers start no further job of it." in done
    assert "Resume…" in done
    [(queue, pause)] = bench.paused.all().items()
    assert queue == "a b/c&d"
    assert pause.by == f"page@{socket.gethostname()}"
    assert "was paused already" in post(browser, "a b/c&d", "pause now").text
    for path in ("/", "/queues"):
        assert re.search(r"paused</span> for [\d.]+ s", browser.get(path).text), path

    assert "1 worker and 2 waiting jobs" in post(browser, "a b/c&d", "resume").text
    assert "Resumed: workers claim" in post(browser, "a b/c&d", "resume now").text
    assert not bench.paused.all()
    assert "was not paused any more" in post(browser, "a b/c&d", "resume now").text


def test_no_other_form_changes_it(bench, browse):
    bench.push("mail", payload(1))
    bench.owner(lists=["mail"])
    reading, changing = browse(), browse(read_only=False)
    assert post(reading, "mail", "pause now").status_code == 403
    assert post(changing, "mail", "pause now", key="another").status_code == 403
    form = {"key": key(changing), "do": "pause now"}
    stranger = {"origin": "https://evil.example"}
    where = {"params": {"name": "mail"}, "data": form}
    assert changing.post("/queues", headers=stranger, **where).status_code == 403
    assert post(changing, "mail", "delete").status_code == 400
    assert changing.get("/queues", params={"name": "mail", "do": "pause now"}).status_code == 200
    assert not bench.paused.all()
    assert post(changing, "nobody knows", "pause now").status_code == 404
    assert not bench.paused.all()


@pytest.mark.parametrize("name", ["nobody", "", EVIL, "../jobs", "mail\x06\x163"])
def test_a_queue_that_nobody_names_is_not_found(bench, browse, name):
    answer = browse().get("/queues", params={"name": name})
    assert answer.status_code == 404
    assert "<img" not in answer.text


def test_it_costs_no_more_with_a_hundred_thousand_jobs(bench: Bench, browse):
    bench.owner(lists=["mail"])
    raws = [payload(n) for n in range(1000)]
    with bench.client.pipeline(transaction=False) as pipe:
        for _ in range(100):
            pipe.lpush("mail", *raws)
        pipe.execute()
    browser = browse()
    browser.get("/queues?name=press")  # connected
    began = monotonic()
    page = browser.get("/queues?name=mail").text
    took = monotonic() - began
    assert "50 of 100000 waiting" in page
    print(f"{took * 1000:.0f} ms")
    assert took < 3, "0.1 s on an idle machine"


def test_all_queues_are_in_one_table(bench, browse):
    for n in range(210):
        bench.owner(elsewhere("far"), lists=[f"q{n}"])
    browser = browse()
    page = browser.get("/queues").text
    assert "and 11 more" in page, "with that of the app"
    assert "q209" in browser.get("/queues?all").text


def test_a_full_server_refuses_a_pause_and_the_page_says_so(fresh_server, make_app):
    """It has answered: it must not be called unreachable."""
    own = fresh_server()
    browser = browser_at(create_app(make_app(url=own.url()), read_only=False))
    form_key = key(browser)
    own.client().config_set("maxmemory", "1mb")
    data = {"key": form_key, "do": "pause now"}
    answer = browser.post("/queues", params={"name": "celery"}, data=data)
    assert "Redis refused this" in answer.text
    assert "its memory is full" in answer.text
    assert "HSETNX" not in answer.text
    assert "cannot be reached" not in answer.text
