"""The page's audit list: who made which change, by the names of tokens."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app
from celery_superfetch.errors import ConfigError
from celery_superfetch.store.audit_list import AuditList
from support.forms import browser_at, key
from support.servers.server import free_port
from support.visitors import Page
from support.workers.bench import Bench, payload

TOKENS = {"ann": "correct-horse-battery", "bob@web": "another-horse-battery"}
PAGE = f"page@{socket.gethostname()}"


def post(browser: TestClient, path: str, do: str, *ids: str) -> Any:
    return browser.post(path, data={"key": key(browser), "do": do, "id": list(ids)})


def rows(bench: Bench) -> list[tuple[str, str, str, str]]:
    """Author, action, subject and state of each change, the oldest first."""
    entries = reversed(AuditList(bench.database).newest(0, 100))
    return [(entry.by, entry.action, entry.subject, entry.state) for entry in entries]


def test_each_change_of_the_page_is_on_the_list(worker, bench, browse):
    worker(concurrency=1).wait_ready()
    jobs = bench.killed(*(payload(n) for n in range(4)))
    browser = browse(read_only=False)
    for path, do, ids in (
        ("/dead", "retry", [jobs[0].id]),
        ("/dead", "delete", [jobs[1].id]),
        ("/dead", "delete for good", [jobs[1].id]),
        ("/dead?task=note", "retry all", []),
        ("/queues?name=celery", "pause", []),
        ("/queues?name=celery", "pause now", []),
        ("/queues?name=celery", "resume now", []),
        ("/jobs?state=parked", "revoke now", ["a", "b"]),
        ("/jobs?state=running", "terminate now", ["c"]),
    ):
        assert post(browser, path, do, *ids).status_code == 200, do
    [owner] = bench.registry.owners()
    node = bench.registry.records([owner])[owner].node
    assert post(browser, "/workers", "stop now", owner).status_code == 200
    assert rows(bench) == [
        (PAGE, "dead retry", f"id {jobs[0].id}", "complete"),
        (PAGE, "dead delete", f"id {jobs[1].id}", "complete"),
        (PAGE, "queue pause", "celery", "complete"),
        (PAGE, "queue resume", "celery", "complete"),
        (PAGE, "jobs revoke", "id a, b", "complete"),
        (PAGE, "jobs terminate", "id c", "complete"),
        (PAGE, "workers stop", node, "complete"),
    ], "a question alone changes nothing"
    page = browse().get("/audit").text
    assert "1 to 7 of 7, the newest first" in page
    assert page.index("Workers stop") < page.index("Queue pause")
    assert "Told 1 worker to revoke" in page


def test_a_change_has_the_name_of_the_token_in_a_session_and_in_a_header(app, bench, browse):
    page = create_app(app, read_only=False, token=TOKENS)
    jobs = bench.killed(*(payload(n) for n in range(3)))
    for (name, token), job in zip(TOKENS.items(), jobs, strict=False):
        browser = browser_at(page)
        assert browser.get("/").status_code == 401
        assert browser.post("/login", data={"token": token}).status_code == 200
        assert post(browser, "/dead", "delete for good", job.id).status_code == 200
        assert rows(bench)[-1][0] == name
    program = browser_at(page)
    program.headers["authorization"] = f"Bearer {TOKENS['bob@web']}"
    assert post(program, "/dead", "retry", jobs[2].id).status_code == 200
    assert rows(bench)[-1][:2] == ("bob@web", "dead retry")
    one = browse(read_only=False, token=TOKENS["ann"])
    one.post("/login", data={"token": TOKENS["ann"]})
    post(one, "/dead", "delete for good", "0" * 40)
    assert rows(bench)[-1][0] == PAGE, "the control: a token without a name"
    assert browser_at(page).get("/").status_code == 401
    for wrong in ("ann", "ann:correct-horse-battery", "", TOKENS["ann"] + "x"):
        assert browser_at(page).post("/login", data={"token": wrong}).status_code == 401


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ({"ann": "short"}, "'ann' of the page must have at least 12"),
        ({"ann": "correct-horse-battery", "bob": "correct-horse-battery"}, "are the same"),
        ({"<b>": "correct-horse-battery"}, "name of a token"),
        ({"x" * 65: "correct-horse-battery"}, "name of a token"),
        ({"ann": "größe-der-batterie"}, "ASCII"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(app, tokens, said):
    with pytest.raises(ConfigError, match=said):
        create_app(app, token=tokens)


def test_named_tokens_come_from_the_environment(env, bench, tmp_path, keep, cli):
    [job] = bench.killed(payload("a"))
    text = " ".join(f"{name}:{token}" for name, token in TOKENS.items())
    page = keep(
        Page({**env(), "SUPERFETCH_WEB_TOKENS": text}, tmp_path, "--allow-changes", token=None)
    ).wait_ready()
    assert page.log().split() == [page.url], "no token is made up"
    browser = page.logged_in(TOKENS["bob@web"])
    assert browser.send_form("dead", "delete for good", job.id) == 200
    assert [row[0] for row in rows(bench)] == ["bob@web"]
    for wrong in ("ann", "ann:", ":secret-of-ann", "ann:short", f"{text} ann:third-horse-battery"):
        refused = cli("web", "--port", str(free_port()), "--tokens", wrong, code=None)
        assert refused.code in (1, 2), wrong
        assert "battery" not in refused.err, "no secret is quoted"


def test_a_change_is_made_although_its_entry_is_not(fresh_server, make_app, caplog):
    server = fresh_server()
    bench = Bench(server.client())
    [job] = bench.killed(payload("a"))
    bench.client.set(bench.keys.audit, "a stranger's")
    browser = browser_at(create_app(make_app(url=server.url()), read_only=False))
    assert "Requeued 1 of 1 job." in post(browser, "/dead", "retry", job.id).text
    assert bench.client.llen("mail") == 1
    assert "Entry of the audit list was not written" in caplog.text
    assert "has changed anything yet" in browser.get("/audit").text
    bench.client.delete(bench.keys.audit)
    post(browser, "/dead", "delete for good", "0" * 40)
    assert re.search("0 of 1 job", browser.get("/audit").text), "the control: it is written"
