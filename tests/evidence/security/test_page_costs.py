"""What a visitor of the page can make it do, at most: searches, forms, numbers, wrong tokens."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import redis
from celery import Celery
from starlette.testclient import TestClient

from celery_superfetch.app.dead_set import DeadSet
from celery_superfetch.console.web import cache, create_app, guesses
from celery_superfetch.console.web.access import HEADERS, OwnNamesOnly
from celery_superfetch.console.web.form import (
    FORM_MAX_BYTES,
    FORM_MAX_FIELDS,
    SMALL_FORM_MAX_BYTES,
)
from celery_superfetch.errors import JobNotFound
from support.forms import browser_at, key
from support.workers.bench import Bench, payload

TOKEN = "correct-horse-battery"
#: Ids of no job: not whole, of a task, whole.
UNKNOWN = (
    "nobody",
    "%25",
    "a" * 5000,
    "0" * 39,
    "d0a61643-9619-4752-8e53-7c2fa58a410c",
    "0" * 40,
)

Browse = Callable[..., TestClient]


@pytest.fixture
def app(make_app: Callable[..., Celery], own: redis.Redis) -> Celery:
    """An app at a server of its own: what is sent there is counted."""
    return make_app(url=f"redis://127.0.0.1:{own.connection_pool.connection_kwargs['port']}/0")


@pytest.fixture
def dead(own: redis.Redis) -> list[Any]:
    return Bench(own).killed(*(payload(f"n{number}") for number in range(3)))


@pytest.fixture
def browse(app: Celery) -> Browse:
    def make(**options: Any) -> TestClient:
        return browser_at(create_app(app, **options), raise_server_exceptions=False)

    return make


def reads_of_all(own: redis.Redis) -> int:
    """Return how often all ids of the dead set were read."""
    return int(own.info("commandstats").get("cmdstat_zscan", {}).get("calls", 0))


# -- ids that no job has


def test_an_unknown_id_has_no_reader_of_all_dead_jobs(app, own, dead, browse):
    browser = browse(read_only=False)
    for id in UNKNOWN:
        assert browser.get(f"/dead/{id}").status_code == 404
    assert browser.get(f"/dead/{dead[0].id}").status_code == 200
    form = {"key": key(browser), "id": [*UNKNOWN, dead[0].id], "do": "retry"}
    answer = browser.post("/dead", data=form)
    assert f"Requeued 1 of {len(UNKNOWN) + 1} jobs." in answer.text
    assert reads_of_all(own) == 0
    with pytest.raises(JobNotFound):
        DeadSet(app, own).get("nobody")
    assert reads_of_all(own) > 0, "control: by a part of an id all are read"


# -- searches to change many


def test_one_change_of_many_jobs_is_searched_for_at_a_time(app, dead, browse, monkeypatch):
    browser, begun, go_on = browse(read_only=False), threading.Event(), threading.Event()
    find = DeadSet.find

    def slow(self: DeadSet, **conditions: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return find(self, **conditions)

    monkeypatch.setattr(DeadSet, "find", slow)
    form, where = {"key": key(browser), "do": "retry all"}, "/dead?task=note"
    with ThreadPoolExecutor(1) as other:
        first = other.submit(browser.post, where, data=form)
        try:
            assert begun.wait(60)
            refused = browser.post(where, data=form)
            assert browser.get("/").status_code == browser.get("/dead").status_code == 200
        finally:
            go_on.set()
        assert "Requeue 3 dead jobs of task note?" in first.result().text
    assert (refused.status_code, refused.headers["retry-after"]) == (503, str(cache.BUSY_S))
    assert "Another change of many jobs is running" in refused.text
    assert "data-away" not in refused.text, "the browser does not send the form again by itself"


# -- forms and numbers


def test_forms_are_as_large_as_they_need_to_be(dead, browse):
    browser = browse(read_only=False, token=TOKEN)
    large = b"token=" + b"x" * SMALL_FORM_MAX_BYTES
    assert browser.post("/login", content=large).status_code == 413
    assert browser.post("/dead", content=b"x" * 2_000_000).status_code == 401, "it is not read"
    browser.headers["authorization"] = f"Bearer {TOKEN}"
    assert browser.post("/dead", content=b"x" * (FORM_MAX_BYTES + 1)).status_code == 413
    assert browser.post("/dead", content=b"a=b&" * FORM_MAX_FIELDS).status_code == 413
    ids = [dead[0].id, *(f"{number:040x}" for number in range(20_000))]
    form = {"key": key(browser), "id": ids, "do": "delete"}
    assert "Delete 20001 jobs for good?" in browser.post("/dead", data=form).text.replace(",", "")


def test_a_client_that_leaves_within_its_form_is_no_error_of_the_page(app):
    """Each made the log longer by a traceback, also those whose form was too slow."""
    page = create_app(app, token=TOKEN)
    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin")]
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b""}
    received = iter([{"type": "http.request", "body": b"tok", "more_body": True}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(received, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(page({**scope, "headers": headers}, receive, send))
    assert sent == [] or sent[0]["status"] == 400


def test_a_page_that_changes_nothing_reads_no_form(browse):
    assert browse().post("/dead", content=b"x" * (FORM_MAX_BYTES + 1)).status_code == 403


@pytest.mark.parametrize("first", ["9" * 5000, "9" * 10, "-1", "1e9", "٣", "0x1", "999999999"])
def test_a_number_that_makes_no_sense_is_the_first_page(dead, browse, first):
    answer = browse().get("/dead", params={"first": first})
    assert answer.status_code == 200


# -- errors have the headers, too


def has_headers(answer: Any) -> bool:
    return all(answer.headers.get(name) == value for name, value in HEADERS.items())


def test_each_error_has_the_headers_of_a_page(app, dead, browse, monkeypatch):
    read_only = browse()
    assert has_headers(read_only.get("/nothing"))
    assert has_headers(read_only.post("/", content=b""))
    assert has_headers(read_only.post("/dead"))
    assert has_headers(read_only.get("/static/nothing"))
    assert has_headers(browse(token=TOKEN).get("/"))
    elsewhere = TestClient(OwnNamesOnly(create_app(app)), "http://evil.example").get("/")
    assert elsewhere.status_code == 421
    assert has_headers(elsewhere)

    def fail(*_: Any) -> None:
        raise ValueError("S3CRET")

    monkeypatch.setattr(cache.PageCache, "overview", fail)
    broken = browse().get("/")
    assert broken.status_code == 500
    assert has_headers(broken)
    assert "S3CRET" not in broken.text


# -- wrong tokens


def test_a_wrong_token_costs_its_client_time_and_no_other(app, monkeypatch, caplog):
    """Each is logged; more than a few at a time are refused at once."""
    monkeypatch.setattr(guesses, "WRONG_TOKEN_S", 0.5)
    caplog.set_level(logging.WARNING, guesses.__name__)
    more = 5

    async def attack() -> tuple[list[int], int]:
        transport = httpx.ASGITransport(create_app(app, token=TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            wrong = [
                asyncio.create_task(client.get("/", headers={"authorization": f"Bearer {number}"}))
                for number in range(guesses.DELAYED_MOST + more)
            ]
            await asyncio.wait(wrong, return_when=asyncio.FIRST_COMPLETED)
            right = await client.get("/login", headers={"authorization": f"Bearer {TOKEN}"})
            return [(await task).status_code for task in wrong], right.status_code

    codes, right = asyncio.run(attack())
    assert right == 405, "it is let in, and answered meanwhile"
    assert codes.count(429) == more
    assert codes.count(401) == guesses.DELAYED_MOST
    assert caplog.text.count("Wrong token for the page") == guesses.DELAYED_MOST


def test_a_wrong_login_costs_as_much_and_a_visit_without_a_token_nothing(app, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, guesses.__name__)
    browser = browser_at(create_app(app, token=TOKEN))
    assert browser.get("/").status_code == 401
    assert not caplog.text
    waited = list[float]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(guesses.anyio, "sleep", sleep)
    assert browser.post("/login", data={"token": "wrong"}).status_code == 401
    assert waited == [guesses.WRONG_TOKEN_S]
    assert "wrong" not in caplog.text
