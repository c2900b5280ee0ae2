"""The page, asked as a browser asks: a real server, real dead jobs, hostile names and texts."""

from __future__ import annotations

import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from celery import Celery
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app
from celery_superfetch.console.web.cache import PageCache
from celery_superfetch.model.job import claim_number
from support.forms import EVIL, Tags
from support.workers.bench import elsewhere, payload


def test_the_overview_says_what_is_wrong_and_who_died(app, bench, browse):
    page = browse().get("/").text
    assert "No live worker is registered" in page
    bench.push("celery", payload("waits", queue="celery"))
    bench.dead_owner([payload("a"), payload("b")], node="w1@host")
    bench.reaper().reap()
    bench.owner(node="w2@host")
    bench.killed(payload("c"))
    page = browse().get("/").text
    assert re.search(r"Queue celery: 1 job.* no worker consumes it", page)
    assert "w1@host" in page, "the dead"
    assert "w2@host" in page, "the living"
    assert 'data-label="Recovered">2<' in page
    assert "1 in the last hour" in page


def test_long_tables_are_cut_unless_all_is_asked_for(bench, browse):
    for number in range(45):
        silent = bench.owner(elsewhere(f"web-{number}"), node=f"w{number}@host", lists=["mail"])
        bench.age(silent, 20_000)
    for number in range(42):
        bench.push(f"q{number}", payload(number))
        bench.owner(elsewhere("far"), lists=[f"q{number}"])
    page, whole = browse().get("/").text, browse().get("/?all").text
    assert page.count('<span class="state warning">silent') == 40
    assert whole.count('<span class="state warning">silent') == 45
    findings, owners, queues = map(int, re.findall(r"and (\d+) more", page))
    assert findings >= 45 + 1 - 7, "the silent, and that nobody makes passes"
    assert (owners, queues) == (45 + 42 - 40, 42 + len(["mail", "celery"]) - 40)
    assert not re.findall(r"and \d+ more", whole)


def test_jobs_in_flight_by_state(bench, browse):
    owner = bench.owner(node="w1@host")
    bench.give(owner.owner, "mail", [payload("a"), payload("b", task=EVIL)])
    browser = browse()
    assert browser.get("/jobs").text.count("<tbody") == 0
    page = browser.get("/jobs?state=reserved").text
    assert "w1@host" in page
    assert Tags(page).count["tr"] == 3
    assert Tags(page).count["script"] == 1
    words = {
        "parked": "is scheduled",
        "probation": "is on probation",
        "struck": "in flight, scheduled or on probation has strikes",
    }
    for state, empty in {**words, EVIL: "is running"}.items():
        assert f"No job {empty}." in browser.get("/jobs", params={"state": state}).text


def run_since(bench, owner, job, seconds: int) -> None:
    """Have one job of an owner run, since so many seconds."""
    bench.run_one(job)
    at = bench.database.server_time() // 1000 - seconds
    started = json.dumps([[claim_number(job.claim_id), at]])
    bench.client.hset(bench.keys.owner_record(owner.owner), "started_jobs", started)


def test_jobs_are_chosen_and_ordered_by_the_address(bench, browse):
    one, two = (bench.owner(node=f"w{n}@host", lists=["mail", "slow"]) for n in (1, 2))
    [quick] = bench.give(one.owner, "mail", [payload("quick", task="shop.quick")])
    [slow] = bench.give(two.owner, "slow", [payload("slow", "slow", task="shop.slow", retries=2)])
    run_since(bench, one, quick, 60)
    run_since(bench, two, slow, 1200)
    browser = browse()

    def shown(**asked: str) -> list[str]:
        page = browser.get("/jobs", params=asked).text
        return re.findall(r'<small class="id">(\w+)</small>', page)

    assert shown() == ["slow", "quick"], "the longest run first"
    assert shown(sort="claimed") == shown(sort="task") == ["quick", "slow"]
    assert shown(longer="10m") == shown(task="slo") == shown(queue="slow") == ["slow"]
    assert shown(node="w1") == ["quick"]
    assert shown(longer="10m", node="w1") == shown(state="reserved") == []
    page = browser.get("/jobs?longer=10m&task=slo&sort=task").text
    assert 'data-label="Run time">20 min<' in page
    assert 'data-label="Retries">2<' in page
    assert f"{one.process.host} · pid {one.process.pid}" in page
    assert 'jobs?state=running&amp;sort=task&amp;task=slo&amp;longer=10m"' in page
    assert 'jobs?state=struck&amp;task=slo&amp;longer=10m"' in page, "tabs keep conditions"


@pytest.mark.parametrize("name", ["state", "sort", "task", "queue", "node", "longer"])
def test_no_condition_of_an_address_is_markup(bench, browse, name):
    owner = bench.owner(node="w1@host")
    bench.run_one(bench.give(owner.owner, "mail", [payload("a")])[0])
    page = browse().get("/jobs", params={name: EVIL})
    assert page.status_code == 200
    assert Tags(page.text).count["script"] == 1
    assert Tags(page.text).count["img"] == 0
    if name == "longer":
        assert "is no duration" in page.text


def test_arguments_of_jobs_in_flight_are_hidden_as_those_of_dead_jobs(app, bench, browse):
    @app.task(name="shop.pay", shared=False)
    def pay(order: str, card: str) -> None: ...

    texts = {"argsrepr": "('A-1', 'S3CRET')", "kwargsrepr": "{'apiToken': 'S3CRET', 'n': 1}"}
    jobs = [payload("x", task="shop.pay", **texts), payload("y", task="shop.unknown", **texts)]
    owner = bench.owner(node="w1@host")
    bench.give(owner.owner, "mail", jobs)
    page = browse().get("/jobs?state=reserved").text
    assert "S3CRET" not in page
    assert "A-1" in page
    assert "S3CRET" in browse(hide=[]).get("/jobs?state=reserved").text, "the control"


def test_secrets_are_hidden_in_the_list_and_on_a_jobs_own_page(app, bench, browse):
    @app.task(name="shop.pay", shared=False)
    def pay(order: str, card: str) -> None: ...

    texts = {"argsrepr": "('A-1', 'S3CRET')", "kwargsrepr": "{'apiToken': 'S3CRET', 'n': 1}"}
    [job] = bench.killed(payload("x", task="shop.pay", **texts))
    for path in ("/dead", f"/dead/{job.id}"):
        page = browse().get(path).text
        assert "S3CRET" not in page
        assert "A-1" in page
        assert "***" in page
    assert "S3CRET" in browse(hide=["n"]).get("/dead").text


def test_pages_and_a_search_that_looks_at_so_many_jobs(bench, browse):
    for at, job in enumerate(bench.killed(*(payload(n) for n in range(120)))):
        bench.die_at(job, 1e12 + at)
    [rare] = bench.killed(payload("rare", task="shop.rare"))
    bench.die_at(rare, 1e12 - 1)
    browser = browse()
    first = browser.get("/dead").text
    assert "1 to 50 of 121" in first
    link = re.search(r'rel="next" href="([^"]+)"', first)
    assert link
    assert "51 to 100 of 121" in browser.get(link[1].replace("&amp;", "&")).text
    assert "101 to 121 of 121" in browser.get("/dead?first=100").text
    assert "only 121 dead jobs" in browser.get("/dead?first=500").text
    found = browser.get("/dead?task=rare").text
    assert "1 found up to number 121 of 121" in found
    assert "shop.note" not in found
    assert "No dead job" in browser.get("/dead?task=nobody").text
    assert rare.reason.capitalize() in browser.get(f"/dead/{rare.id}").text


def asked(app: Celery, browsers: int, silent: socket.socket) -> int:
    """How often a server that says nothing is tried while so many look at once."""
    browser = TestClient(create_app(app), base_url="http://localhost")
    begun, look = threading.Barrier(browsers), partial(browser.get, "/")

    def together() -> int:
        begun.wait()
        return look().status_code

    with ThreadPoolExecutor(browsers) as side_by_side:
        looks = [side_by_side.submit(together) for _ in range(browsers)]
        assert [one.result() for one in looks] == [503] * browsers
    silent.setblocking(False)
    tried = 0
    with suppress(BlockingIOError):
        while True:
            silent.accept()[0].close()
            tried += 1
    return tried


def test_all_who_have_waited_are_told_by_one_failure(make_app):
    tries = []
    for browsers in (1, 4):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            app = make_app(url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
            tries.append(asked(app, browsers, silent))
    assert tries[0] == tries[1] > 0


def test_the_page_is_as_patient_as_a_probe(app, bench):
    seen = PageCache(app, ())
    assert seen.overview()
    assert seen._inspector is not None
    assert seen._inspector.database.client.get_connection_kwargs()["socket_timeout"] == 5.0


def test_a_server_that_is_away_is_said_and_found_again(make_app, fresh_server):
    own = fresh_server()
    browser = TestClient(create_app(make_app(url=own.url())), base_url="http://localhost")
    assert browser.get("/").status_code == 200
    own.kill()
    answer = browser.get("/dead")
    assert answer.status_code == 503
    assert "The server cannot be reached" in answer.text
    own.start()
    assert browser.get("/dead").status_code == 200


def test_the_queue_of_a_dead_job_is_named_without_its_priority(bench, browse):
    [job] = bench.killed(payload("a"), queue="mail\x06\x163")
    page = browse()
    for path in ("/dead", f"/dead/{job.id}"):
        assert "\\x06" not in page.get(path).text


def test_a_url_that_cannot_be_read_is_said_without_any_part_of_it(make_app):
    page = create_app(make_app(url="redis://:s3cr/et@localhost:1/0"))
    answer = TestClient(page, base_url="http://localhost").get("/")
    assert answer.status_code == 503
    assert "percent-encode its password" in answer.text
    assert "s3cr" not in answer.text
