"""The page in a real browser: what one sees changes by itself, and a click puts a job back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from celery_superfetch.worker.run_counts import RunCounts
from support.servers.database import Database
from support.troubled import make_troubled
from support.visitors import serving
from support.waiting import eventually
from support.well import make_well
from support.workers.bench import Bench, payload


@pytest.fixture
def page(make_app: Any, bench: Bench) -> Iterator[str]:
    with serving(make_app()) as url:
        yield url


def test_a_job_that_dies_is_seen_and_put_back_by_a_click(browser, page, bench):
    def all_of(css: str) -> list[Any]:
        return browser.find_elements("css selector", css)

    def text() -> str:
        return browser.find_element("css selector", "main").text

    browser.get(f"{page}dead")
    assert "The dead set is empty." in text()
    raw = payload("a", argsrepr="('" + "x" * 500 + "',)")
    bench.killed(raw, queue="mail" * 20)
    eventually(lambda: all_of("tbody tr"), message="it is seen without a reload")
    for width in (1400, 390):
        browser.set_window_size(width, 900)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= browser.execute_script("return innerWidth"), "nothing scrolls sideways"

    [box] = all_of("input[name=id]")
    box.click()
    bench.killed(payload("b"))
    eventually(lambda: "Paused" in browser.find_element("id", "pulse").text)
    assert len(all_of("tbody tr")) == 1, "the selection stays"
    assert "1 selected" in text()
    browser.find_element("css selector", "button[value=retry]").click()
    eventually(lambda: "Requeued 1 of 1 job." in text())
    assert bench.queue("mail" * 20) == [raw]

    browser.get(page)
    bench.push("celery", payload("waits", queue="celery"))
    eventually(lambda: "no worker consumes it" in text())
    assert [entry["message"] for entry in browser.get_log("browser")] == [], "its policy is kept"


def test_each_view_fits_a_screen_and_a_phone_and_is_reached_by_keys(browser, page, bench):
    owner = bench.owner(node=f"worker-{'x' * 60}@host", lists=["mail" * 20], pool_name="prefork")
    id = "330d32dc-00c0-4cd5-8a0e-6e3c3a2fb6a4"
    raw = payload(id, queue="mail" * 20, task="shop." + "y" * 80, argsrepr="('" + "x" * 500 + "',)")
    [job] = bench.give(owner, "mail" * 20, [raw])
    bench.run_one(job)
    views = {
        "": "Running",
        "jobs": "Retries",
        "jobs?state=struck&longer=10m": "and matches the filter",
        f"jobs/{id}": "History",
        "jobs/nowhere": "No job with this id",
        "workers": "Heartbeat",
        f"workers/{quote(owner.owner, safe='')}": "Run time",
        "recurring": "celery_superfetch.reap",
    }
    for width in (1400, 390):
        browser.set_window_size(width, 900)
        for path, text in views.items():
            browser.get(f"{page}{path}")
            assert text in browser.page_source, path
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            inner = browser.execute_script("return innerWidth")
            assert wide <= inner, (path, width, "nothing scrolls sideways")
    browser.set_window_size(1400, 900)
    browser.get(f"{page}jobs")
    task = browser.find_element("name", "task")
    task.send_keys("shop", "\ue007")  # Enter
    eventually(lambda: "task=shop" in browser.current_url)
    link = browser.find_element("partial link text", "shop.yyy")
    link.send_keys("\ue007")
    eventually(lambda: f"jobs/{id}" in browser.current_url)
    logged = [entry["message"] for entry in browser.get_log("browser")]
    assert not [text for text in logged if "404" not in text], "its policy is kept"


@pytest.mark.parametrize("width", [390, 1400])
def test_all_that_match_are_retried_by_keyboard_with_a_progress_bar(
    browser, make_app, bench, fresh_server, width
):
    """While the result backend hangs, the bar stands; with and without JavaScript it moves on."""
    from selenium.webdriver.common.keys import Keys

    def find(css: str) -> Any:
        return browser.find_element("css selector", css)

    results = fresh_server()
    bench.killed(*(payload(f"n{n}", task="shop." + "y" * 80) for n in range(120)))
    with serving(make_app(result_url=results.url())) as url:
        browser.set_window_size(width, 900)
        for has_scripts in (True, False):
            browser.execute_cdp_cmd(
                "Emulation.setScriptExecutionDisabled", {"value": not has_scripts}
            )
            browser.get(f"{url}dead?task=yyy")
            results.pause()
            find("button[value='retry all']").send_keys(Keys.ENTER)
            eventually(lambda: "Requeue 120 dead jobs of task yyy?" in browser.page_source)
            find("button[value='retry all now']").send_keys(Keys.ENTER)
            eventually(lambda: "Under way: 0 of 120 jobs" in find("main").text)
            bar = find("progress")
            assert (bar.get_attribute("value"), bar.get_attribute("max")) == ("0", "120")
            assert bar.accessible_name == "Jobs that were dealt with"
            if has_scripts:
                wide = browser.execute_script("return document.documentElement.scrollWidth")
                assert wide <= browser.execute_script("return innerWidth")
            results.resume()
            eventually(lambda: "Complete: 120 of 120 jobs" in find("main").text, 30)
            find("nav a[href$='audit']").send_keys(Keys.ENTER)
            eventually(lambda: "Requeued 120 of 120 jobs" in find("main").text)
            assert bench.client.llen("mail") == 120
            bench.client.delete("mail")
            bench.killed(*(payload(f"n{n}", task="shop." + "y" * 80) for n in range(120)))
    logged = [entry["message"] for entry in browser.get_log("browser")]
    assert logged == [], "its policy is kept"


def test_waiting_jobs_are_selected_and_revoked_by_keyboard(browser, page, bench):
    from selenium.webdriver.common.keys import Keys

    def find(css: str) -> Any:
        return browser.find_element("css selector", css)

    bench.push("celery", payload("a", queue="celery"), payload("b", queue="celery"))
    for width in (390, 1400):
        browser.set_window_size(width, 900)
        browser.get(f"{page}queues?name=celery")
        find("input[name=id][value=a]").send_keys(Keys.SPACE)
        eventually(lambda: "1 selected:" in find("main").text)
        find("button[value=revoke]").send_keys(Keys.ENTER)
        eventually(lambda: "Revoke 1 job?" in find("main").text)
        find("button[value='revoke now']").send_keys(Keys.ENTER)
        eventually(lambda: "no worker answered" in find("main").text)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= browser.execute_script("return innerWidth"), "nothing scrolls sideways"


def test_an_open_page_says_at_once_that_its_data_is_old(browser, make_app, fresh_server):
    server = fresh_server(appendonly=True)
    make_well(Bench(server.client()))

    def verdict() -> str:
        return browser.find_element("css selector", "main").text

    with serving(make_app(url=server.url())) as url:
        browser.get(url)
        assert verdict().startswith("All is well")
        server.stop()
        eventually(lambda: "This data is" in verdict(), message="it is not said that it is old")
        assert "All is well" not in verdict()
        assert browser.title.startswith("Old data")
        assert "The server cannot be reached" in verdict()
        browser.get(url)
        assert "The server cannot be reached" in verdict(), (
            "a page that was an error from the start"
        )
        server.start()
        eventually(lambda: verdict().startswith("All is well"), message="it never came back")
        assert "This data is" not in verdict()
        # A server that hangs refuses nothing: the page says so before its own process gives up.
        server.pause()
        eventually(lambda: "No answer for 3 s" in verdict(), message="it waits in silence")
        assert "All is well" not in verdict()
        server.resume()
        eventually(lambda: verdict().startswith("All is well"), message="it never came back")
        assert "This data is" not in verdict()


#: Views that show nothing of the server, or nothing that changes.
STILL = ("no job", "no worker", "no page")


@pytest.mark.timeout(400)
def test_every_open_view_says_at_once_that_its_data_is_old(browser, make_app, fresh_server):
    """Of a server that is stopped, and of one that hangs: each tab says so when it is looked at."""
    server = fresh_server(appendonly=True)
    client = server.client()
    views = make_troubled(Bench(client), Database(client))

    def banner() -> str:
        return browser.find_element("id", "old").text

    with serving(make_app(url=server.url())) as url:
        tabs = dict[str, str]()
        for name in views.keys() - {*STILL}:
            browser.switch_to.new_window("tab")
            browser.get(f"{url}{views[name]}")
            assert banner() == "", name
            tabs[name] = browser.current_window_handle

        def all_say(text: str, reason: str) -> None:
            for name, tab in tabs.items():
                browser.switch_to.window(tab)
                eventually(lambda: text in banner() and reason in banner(), message=name)

        def all_are_fresh() -> None:
            for name, tab in tabs.items():
                browser.switch_to.window(tab)
                eventually(lambda: banner() == "", message=name)

        server.stop()
        all_say("This data is", "The server cannot be reached")
        server.start()
        all_are_fresh()
        server.pause()
        all_say("This data is", "No answer for 3 s")
        server.resume()
        all_are_fresh()


def test_charts_and_server_fit_a_phone_and_the_table_stays_open(browser, page, bench):
    counts = RunCounts()
    counts.count_run("mail" * 20, "shop.note", None, 0.1)
    counts.count(bench.database)
    bench.dead_owner([payload("a")], node="celery@web-1")
    bench.reaper().reap()
    for path in ("charts", "charts?hours=24", f"charts?hours=24&queue={'mail' * 20}", "server"):
        browser.get(f"{page}{path}")
        for width in (1400, 390):
            browser.set_window_size(width, 900)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= browser.execute_script("return innerWidth"), (path, width)

    browser.get(f"{page}charts")
    summary = browser.find_element("css selector", "summary")
    summary.send_keys("\n")
    figures = browser.find_element("id", "figures")
    assert figures.is_displayed(), "by the keyboard alone"
    before = figures.text
    counts.count_run("slow", "shop.note", None, 0.1)
    counts.count(bench.database)
    eventually(lambda: figures.text != before, message="it is read again")
    assert figures.is_displayed()
    images = browser.find_elements("css selector", "#charts svg[role=img]")
    assert "2 in all" in images[0].get_attribute("textContent")


def test_a_queue_is_paused_by_keyboard_on_a_phone_and_elsewhere(browser, page, bench):
    """Its name is long, and a job comes while it is looked at."""
    from selenium.webdriver.common.keys import Keys

    def find(css: str) -> Any:
        return browser.find_element("css selector", css)

    queue = "mail" * 20
    bench.owner(lists=[queue], node="w1@host")
    for width, do in ((390, "pause"), (1400, "resume")):
        browser.set_window_size(width, 900)
        browser.get(page)
        link = find(f"#queues a[href$='{queue}']")
        link.send_keys(Keys.ENTER)
        eventually(lambda: find(".head h1").text == f"Queue {queue}")
        bench.push(queue, payload(f"job-{width}", argsrepr="('" + "x" * 500 + "',)"))
        eventually(lambda w=width: f"job-{w}" in find("main").text, message="without a reload")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= browser.execute_script("return innerWidth"), "nothing scrolls sideways"
        find(f"button[value={do}]").send_keys(Keys.ENTER)
        eventually(lambda: "This concerns 1 worker and" in find("main").text)
        find(f"button[value='{do} now']").send_keys(Keys.ENTER)
        eventually(lambda d=do: {"pause": "Paused:", "resume": "Resumed:"}[d] in find("main").text)
        assert bool(bench.paused.all()) == (do == "pause")
    assert [entry["message"] for entry in browser.get_log("browser")] == [], "its policy is kept"
