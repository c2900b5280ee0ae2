"""What was tried at the page in vain: markup in each field, paths, headers, names of sites."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app
from celery_superfetch.console.web import frame as frame_of_the_page
from celery_superfetch.console.web.access import OwnNamesOnly
from celery_superfetch.console.web.filters import JOB_STATES
from celery_superfetch.model.job import digest
from celery_superfetch.store.audit_list import AuditList
from support.forms import EVIL, Tags, browser_at, key
from support.visitors import HOSTS
from support.workers.bench import Bench, ended_process, payload


def evil(name: str) -> bytes:
    """A job whose sender has put markup wherever it can."""
    return payload(f"{EVIL}{name}", queue=EVIL, task=EVIL, argsrepr=f"({EVIL},)", kwargsrepr=EVIL)


def fill(bench: Bench, db: Any) -> str:
    """Put markup into each record that the page shows; returns the id of a dead job."""
    [job] = bench.killed(evil("dead"), queue=EVIL, reason=EVIL)
    bench.killed(b"\xff junk <script>alert(3)</script>")
    dying = bench.dead_owner([evil("lost")], EVIL, node=EVIL, app=EVIL, lists=[EVIL])
    assert dying
    bench.reaper().reap()
    bench.owner(ended_process(), node=EVIL, app=EVIL, lists=[EVIL])
    living = bench.owner(node=EVIL, app=EVIL, lists=[EVIL])
    reserved, runs = bench.give(living, EVIL, [evil("reserved"), evil("runs")])
    bench.run_one(runs)
    assert reserved
    db.suspect(evil("suspect"), EVIL)
    due = bench.database.server_time() + 10**7
    member = json.dumps(EVIL).encode() + b" x-1\n" + evil("parked")
    bench.client.zadd(bench.keys.parked_of(EVIL), {member: due})
    bench.client.zadd(bench.keys.parked, {EVIL: due})
    bench.push(EVIL, evil("waits"))
    bench.client.hset(bench.keys.beats, EVIL, json.dumps([1, 1.0, EVIL, EVIL]))
    with AuditList(bench.database).recording(EVIL, EVIL, EVIL, 3) as entry:
        entry.end(EVIL)
    row = dict.fromkeys(("by", "action", "subject", "outcome", "state"), EVIL)
    bench.client.hset(bench.keys.audit, EVIL, json.dumps({"at": EVIL, "state": EVIL}))
    bench.client.hset(bench.keys.audit, "evil", json.dumps({**row, "at": 1, "total": 7}))
    bench.client.hset(bench.keys.bulk, "evil", json.dumps([EVIL]))
    bench.client.hincrby(bench.keys.stats, f"recovered\t{EVIL}\t{EVIL}", 3)
    return job.id


def owner_of(bench: Bench) -> str:
    """The owner whose job is in flight."""
    return next(owner for owner in bench.registry.owners() if bench.lists.held(owner).claims)


def test_no_text_of_another_is_markup_or_obeyed(app, bench, db):
    id = fill(bench, db)
    browser = browser_at(create_app(app, read_only=False), raise_server_exceptions=True)
    guarded = browser_at(create_app(app, token="correct-horse-battery"))
    form_key = key(browser)

    def post(path: str, do: str, *ids: str) -> Any:
        return browser.post(path, data={"key": form_key, "do": do, "id": list(ids)})

    where = {"task": EVIL, "queue": EVIL, "reason": EVIL, "first": EVIL}
    query = "?" + "&".join(f"{name}={quote(text)}" for name, text in where.items())
    pages = {
        "overview": browser.get("/"),
        "overview, all": browser.get("/", params={"all": EVIL}),
        **{f"jobs {state}": browser.get("/jobs", params={"state": state}) for state in JOB_STATES},
        "jobs of no state": browser.get("/jobs", params={"state": EVIL}),
        "jobs, searched": browser.get(
            "/jobs", params=dict.fromkeys(("sort", "task", "queue", "node", "longer"), EVIL)
        ),
        "job": browser.get(f"/jobs/{digest(evil('runs'))}"),
        "dead job among the jobs": browser.get(f"/jobs/{id}"),
        "no job": browser.get(f"/jobs/{quote(EVIL.replace('/', ''))}"),
        "queues": browser.get("/queues"),
        "queue": browser.get("/queues", params={"name": EVIL}),
        "no queue": browser.get("/queues", params={"name": f"{EVIL}!"}),
        "pause?": browser.post(
            "/queues", params={"name": EVIL}, data={"key": form_key, "do": "pause"}
        ),
        "paused": browser.post(
            "/queues", params={"name": EVIL}, data={"key": form_key, "do": "pause now"}
        ),
        "workers": browser.get("/workers"),
        "worker": browser.get(f"/workers/{quote(owner_of(bench), safe='')}"),
        "recurring": browser.get("/recurring"),
        "audit": browser.get("/audit"),
        "change": browser.get("/audit/evil"),
        "no change": browser.get(f"/audit/{quote(EVIL.replace('/', ''))}"),
        "continued?": post("/audit/evil", "continue"),
        "delete all?": post("/dead", "delete all"),
        "revoke all?": post("/jobs?state=reserved", "revoke all"),
        "revoke waiting?": browser.post(
            "/queues", params={"name": EVIL}, data={"key": form_key, "do": "revoke all"}
        ),
        "revoked waiting": browser.post(
            "/queues", params={"name": EVIL}, data={"key": form_key, "do": "revoke now", "id": EVIL}
        ),
        "audit, later": browser.get("/audit", params={"first": EVIL}),
        "no worker": browser.get(f"/workers/{quote(EVIL, safe='')}"),
        "dead": browser.get("/dead"),
        "dead, searched": browser.get(f"/dead{query}"),
        "dead job": browser.get(f"/dead/{id}"),
        "no dead job": browser.get(f"/dead/{quote(EVIL.replace('/', ''))}"),
        "no page": browser.get(f"/{quote(EVIL, safe='')}"),
        "delete?": post("/dead", "delete", id, EVIL),
        "retry all?": post(f"/dead{query}", "retry all"),
        "terminate?": post("/jobs", "terminate", EVIL),
        "revoke?": post("/jobs", "revoke", EVIL),
        "terminated": post("/jobs", "terminate now", EVIL),
        "retried": post("/dead", "retry", EVIL),
        "no such change": post("/dead", EVIL),
        "no form of the page": browser.post("/dead", data={"key": EVIL, "do": EVIL}),
        "login": guarded.get("/", params={"token": EVIL}),
    }
    assert len(pages) == 44
    for name, page in pages.items():
        tags = Tags(page.text)
        assert tags.count["script"] == 1, (name, "the page's own")
        assert not tags.count["img"], name
        active = [each for each in tags.attributes if each.startswith("on") or each == "style"]
        assert not active, name
        assert "\u202e" not in page.text, name
        assert "\x1b" not in page.text, name
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
    shown = "overview", "jobs running", "jobs parked", "job", "dead", "dead job", "no dead job"
    shown += "queues", "queue", "pause?", "paused", "workers", "worker", "audit"
    shown += "change", "revoke all?", "revoke waiting?"
    for name in shown:
        assert "&lt;script&gt;" in pages[name].text, (name, "control: it is shown")
    assert {
        pages[name].status_code
        for name in ("no job", "no queue", "no change", "no dead job", "no page")
    } == {404}


def test_the_control_without_escapes_it_is_markup(app, bench, db, monkeypatch):
    fill(bench, db)
    environment = frame_of_the_page.Environment
    monkeypatch.setattr(
        frame_of_the_page,
        "Environment",
        lambda **options: environment(**{**options, "autoescape": False, "finalize": None}),
    )
    paths = "/", "/jobs", f"/jobs/{digest(evil('runs'))}", "/dead", "/queues"
    for path in (*paths, f"/queues?name={quote(EVIL)}"):
        assert Tags(browser_at(create_app(app)).get(path).text).count["img"]


#: As they are sent: a client library would tidy them up.
PATHS = (
    "/static/../page.py",
    "/static/..%2fpage.py",
    "/static/%2e%2e/page.py",
    "/static/..%5cpage.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/page.css%00.html",
    "/jobs/..%2f..%2fstatic%2fpage.py",
    "/jobs/..%2fdead",
    "/workers/..%2f..%2fstatic%2fpage.py",
    "/dead/..%2f..%2fstatic%2fpage.py",
    "/../../etc/passwd",
)


def test_no_path_leads_to_a_file_beside_those_of_the_page(serve):
    page = serve()
    for path in PATHS:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as raw:
            raw.sendall(head.encode())
            answer = b"".join(iter(lambda at=raw: at.recv(65536), b""))
        assert answer.split(b" ")[1] in (b"400", b"404"), (path, answer[:200])
        assert b"root:" not in answer
        assert b"import annotations" not in answer


def test_no_text_of_a_request_becomes_a_header(app, bench):
    browser = browser_at(create_app(app, read_only=False))
    lines = "a\r\nset-cookie: planted=1\r\n\r\n<script>"
    answers = [
        browser.get("/dead", params={"task": lines, "first": lines}),
        browser.get("/jobs", params=dict.fromkeys(("state", "task", "longer"), lines)),
        browser.get(f"/jobs/{quote(lines)}"),
        browser.get(f"/dead/{quote(lines)}"),
        browser.get(f"/{quote(lines)}", follow_redirects=False),
        browser.get("/", params={"token": lines}, follow_redirects=False),
        browser.post("/dead", data={"key": key(browser), "do": "delete", "id": lines}),
    ]
    for answer in answers:
        assert "planted" not in answer.headers.get("set-cookie", "")
        assert "planted" not in answer.headers.get("location", "")


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_without_a_token_no_name_of_another_site_leads_here(app, host, status):
    browser = TestClient(OwnNamesOnly(create_app(app)))
    assert browser.get("/", headers={"host": host}).status_code == status
