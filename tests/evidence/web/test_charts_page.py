"""The page's charts and its view of the server, asked as a browser asks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app
from celery_superfetch.console.web.cache import REFUSED_S
from celery_superfetch.store.runs import RunReport, Runs
from celery_superfetch.store.stats import Stats
from celery_superfetch.worker.run_counts import RunCounts
from support.forms import EVIL, Tags, browser_at
from support.servers.work import noted
from support.workers.bench import Bench, payload

SVG = re.compile(r"<svg class=\"bars\".*?</svg>", re.DOTALL)


def fill(bench: Bench, *queues: str) -> None:
    """Some of each event on each of these queues."""
    counts = RunCounts()
    for queue in queues:
        for number in range(5):
            counts.count_run(queue, "shop.note", ValueError() if number > 2 else None, 0.1)
    counts.count(bench.database)
    bench.dead_owner([payload("r")], queue=queues[0], lists=queues)
    bench.reaper().reap()
    bench.killed(payload("k"), queue=queues[-1])
    Stats(bench.database).record_pass({"by": "a test"}, {queues[0]: 7})


def charts_in(page: str) -> dict[str, Any]:
    """The charts of a page by their title: well-formed, and each says what it shows."""
    found = {}
    for text in SVG.findall(page):
        svg = ElementTree.fromstring(text)
        named = {part.get("id"): part for part in svg.iter() if part.get("id")}
        labels = (svg.get("aria-labelledby") or "").split()
        assert svg.get("role") == "img"
        assert len(labels) == 2
        title, description = ((named[label].text or "").strip() for label in labels)
        found[title.partition(":")[0]] = description
    return found


def test_the_charts_say_what_they_show_and_a_table_says_the_same(bench, browse):
    fill(bench, "mail", "slow")
    page = browse().get("/charts").text
    charts = charts_in(page)
    assert {*charts} == {"Finished", "Failed", "Retried", "Recovered", "Dead-lettered", "Waiting"}
    assert "6 in all, at most 6 in a minute" in charts["Finished"]
    assert "4 in all" in charts["Failed"]
    assert charts["Retried"].endswith(": none.")
    assert "at most 7 in a minute" in charts["Waiting"]
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", page, re.DOTALL)
    figures = [re.findall(r"<td class=\"n(?: zero)?\">(\S+)</td>", row) for row in rows]
    minutes = [row for row in figures if len(row) == 7]
    assert len(minutes) == 61
    sums = [sum(int(row[at]) for row in minutes if row[at].isdecimal()) for at in range(6)]
    assert sums == [6, 4, 0, 0, 1, 1]
    assert "7" in [row[6] for row in minutes]
    assert page.count("<script") == 1
    assert "style=" not in page, "its policy forbids it"


def test_a_queue_has_charts_of_its_own_and_a_day_has_144_slots(bench, browse):
    fill(bench, "mail", "slow")
    browser = browse()
    page = browser.get("/charts?queue=mail").text
    assert "3 in all" in charts_in(page)["Finished"]
    assert "1 in all" in charts_in(page)["Recovered"]
    assert charts_in(page)["Dead-lettered"].endswith(": none.")
    day = browser.get("/charts?hours=24&queue=mail").text
    assert "3 in all, at most 3 in 10 minutes" in charts_in(day)["Finished"]
    assert day.count('<tr><th scope="row">') >= 145
    assert 'href="http' not in day
    unknown = browser.get("/charts?queue=no-such-queue")
    assert unknown.status_code == 200
    assert all(text.endswith("none.") for text in charts_in(unknown.text).values())


@pytest.mark.parametrize("hours", ["", "0", "-1", "1", "2", "9" * 5000, "x", EVIL])
def test_other_hours_are_one_hour(browse, hours):
    page = browse().get("/charts", params={"hours": hours})
    assert page.status_code == 200
    assert 'aria-current="true">Last hour' in page.text


def test_names_of_queues_are_text_and_lead_to_their_charts(bench, browse):
    hostile = (EVIL, "a&b=c#d?e/../f", "x" * 3000)
    fill(bench, *hostile)
    browser = browse()
    page = browser.get("/charts").text
    tags = Tags(page).count
    assert (tags["script"], tags["img"]) == (1, 0)
    links = re.findall(r"<b><a href=\"([^\"]+)\">", page)
    assert len(links) == 3
    for link in links[:3]:
        shown = browser.get(link.replace("&amp;", "&"))
        assert shown.status_code == 200
        assert Tags(shown.text).count["script"] == 1
        if "xxx" not in link:  # a longer name is cut
            assert "3 in all" in charts_in(shown.text)["Finished"]


def test_the_times_of_recoveries_and_an_empty_page(bench, browse):
    page = browse().get("/charts").text
    assert "No dead worker left a job in the last hour." in page
    assert "No queue has had a run" in page
    bench.dead_owner([payload("1")], node="w1@host")
    bench.reaper().reap()
    page = browse().get("/charts").text
    assert "w1@host" in page
    assert 'data-label="Recovered">1<' in page
    assert "<caption>By hours</caption>" in browse().get("/charts?hours=24").text


def test_2000_queues_answer_soon_and_cost_a_few_commands(own_app: Any) -> None:
    app, bench = own_app
    names = [f"queue-{number:04}" for number in range(2000)]
    number = 0
    for how in ("succeeded", "failed"):
        for at in range(0, len(names), 250):
            growths = [((how, name, "shop.note"), 400) for name in names[at : at + 250]]
            Runs(bench.database).add(RunReport("a worker", number, growths))
            number += 1
    browser = browser_at(create_app(app))
    browser.get("/charts")  # it connects
    for path in ("/charts?hours=24", "/charts?queue=queue-1999", "/charts"):
        time.sleep(1.1)  # the answer before is not cached any more
        with noted(bench.client) as work:
            took = []
            for _ in range(3):  # two of them have the first one's answer
                began = time.process_time()
                page = browser.get(path).text
                took.append(time.process_time() - began)
        assert len(work.commands) <= 12, [command.name for command in work.commands]
        assert min(took) < 0.3
        assert "Finished" in page
    assert "more" in browser.get("/charts").text


@pytest.fixture
def own_app(own: Any, make_app: Callable[..., Any]) -> tuple[Any, Bench]:
    """An app on a server of its own."""
    port = own.connection_pool.connection_kwargs["port"]
    return make_app(url=f"redis://127.0.0.1:{port}/0"), Bench(own)


def test_the_server_with_its_findings_and_their_links(own_app: Any) -> None:
    app, bench = own_app
    bench.client.config_set("maxmemory-policy", "allkeys-lru")
    browser: TestClient = browser_at(create_app(app))
    page = browser.get("/server").text
    row = re.search(r"<tr id=\"policy\" class=\"(\w+)\">(.*?)</tr>", page, re.DOTALL)
    assert row is not None
    assert row[1] == "warning"
    assert "the server may evict jobs" in row[2] or "The server may evict jobs" in row[2]
    assert "CONFIG SET maxmemory-policy noeviction" in row[2]
    assert '<tr id="commands" class="ok">' in page
    assert "server#policy" in browser.get("/").text


def test_refused_commands_are_asked_for_once_a_minute(own_app: Any) -> None:
    app, bench = own_app
    browser = browser_at(create_app(app))
    with noted(bench.client) as work:
        for _ in range(3):
            assert browser.get("/server").status_code == 200
            time.sleep(1.1)
    assert REFUSED_S >= 60
    assert sum(command.name == "multi" for command in work.commands) <= 1


def test_the_overview_has_the_charts_of_the_last_hour(bench, browse):
    fill(bench, "mail")
    charts = charts_in(browse().get("/").text)
    assert {*charts} == {"Finished", "Failed", "Waiting"}
    assert "3 in all" in charts["Finished"]
    assert "at most 7 in a minute" in charts["Waiting"]
