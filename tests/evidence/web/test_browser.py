"""The page in a real browser: what one sees changes by itself, and a click puts a job back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from celery_superfetch.console.web import create_app
from support.servers.server import free_port
from support.waiting import eventually
from support.well import make_well
from support.workers.bench import Bench, payload


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve the page of an app from a thread; yields its URL."""
    port = free_port()
    config = uvicorn.Config(
        create_app(app, read_only=False), port=port, log_level="warning", lifespan="off"
    )
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    eventually(lambda: served.started)
    yield f"http://127.0.0.1:{port}/"
    served.should_exit = True
    thread.join(10)


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
    assert "No job is dead." in text()
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
    eventually(lambda: "Put back 1 of 1 job." in text())
    assert bench.queue("mail" * 20) == [raw]

    browser.get(page)
    bench.push("celery", payload("waits", queue="celery"))
    eventually(lambda: "no worker consumes it" in text())
    assert [entry["message"] for entry in browser.get_log("browser")] == [], "its policy is kept"


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
        assert "The server cannot be asked" in verdict()
        browser.get(url)
        assert "The server cannot be asked" in verdict(), "a page that was an error from the start"
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
