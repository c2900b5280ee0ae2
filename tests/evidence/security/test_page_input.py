"""What is put into requests and fields of the page: markup, paths, lines, names."""

from __future__ import annotations

import socket
from urllib.parse import quote

import pytest

from support.forms import Tags
from support.visitors import TOKEN
from support.workers.bench import payload

EVIL = (
    "<script>evil()</script><img src=x onerror=evil()>\"'`{{7777*7777}}\u202e\x1b[2J\r\nX-Evil: 1"
)


def raw(page, head: str) -> bytes:
    """Send a request as it stands: clients tidy paths up."""
    with socket.create_connection(("127.0.0.1", page.port), timeout=30) as connection:
        lines = [head, "Host: localhost", f"Authorization: Bearer {TOKEN}", "Connection: close"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        with connection.makefile("rb") as answer:
            return answer.read()


def test_no_field_of_any_page_is_markup(serve, bench):
    """Twenty-two pages, with the same in each field of a job, an owner, a queue and an address."""
    texts = {"argsrepr": f"({EVIL},)", "kwargsrepr": EVIL}
    [job] = bench.killed(payload(EVIL, task=EVIL, **texts), queue=EVIL, reason=EVIL)
    bench.killed(b"\xff junk <script>evil()</script>")
    bench.owner(node=EVIL, lists=[EVIL])
    bench.push(EVIL, payload(EVIL, task=EVIL))
    evil = quote(EVIL)
    page = serve("--allow-changes")
    browser = page.logged_in()
    states = ("running", "reserved", "parked", "probation", "struck", evil)
    reads = [
        *("", "?all", f"?{evil}", "dead", "jobs", f"dead/{job.id}", f"dead/{evil}", evil),
        *(f"jobs?state={state}" for state in states),
        *(f"dead?{name}={evil}" for name in ("task", "queue", "reason", "first")),
    ]
    form = {"key": browser.key(), "id": [job.id, EVIL]}
    answers = [
        *map(browser.get, reads),
        *(browser.post(f"dead?task={evil}", data={**form, "do": do}) for do in ("delete", EVIL)),
        browser.post(f"jobs?state={evil}", data={**form, "do": "kill"}),
        page.browser().post("login", data={"token": EVIL}),
    ]
    assert len(answers) == 22
    for answer in answers:
        tags = Tags(answer.text)
        assert tags.count["script"] == 1, "the page's own"
        assert not tags.count["img"]
        assert not {name for name in tags.attributes if name.startswith("on") or name == "style"}
        assert not {"\u202e", "\x1b"} & set(answer.text)
        assert str(7777 * 7777) not in answer.text, "no template is filled in"
        assert "x-evil" not in answer.headers
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
    assert sum("&lt;script&gt;" in answer.text for answer in answers) > 5, "control: it is shown"


def test_a_path_leads_to_no_file_but_its_own(serve):
    page = serve()
    assert b" 200 " in raw(page, "GET /static/page.css HTTP/1.1")[:20], "control"
    up = ("..", "%2e%2e", "..%2f", "%2e%2e%2f", "....//", "..%5c", "%252e%252e")
    names = ("access.py", "templates/base.html", "../../../setup.cfg", "etc/passwd")
    tried = [f"/static/{way}/{name}" for way in up for name in names]
    for path in (*tried, "/static//etc/passwd", "//etc/passwd", "/static/%00", "/../access.py"):
        answer = raw(page, f"GET {path} HTTP/1.1")
        status = int(answer.split(b" ")[1])
        assert status in (400, 404, 405), (path, status)
        for text in (b"import", b"[metadata]", b"root:", b"{%"):
            assert text not in answer, path


def test_a_line_in_a_request_begins_no_header(serve):
    page = serve("--allow-changes")
    line = "%0d%0aSet-Cookie:%20evil=1%0d%0a%0d%0a<script>"
    for path in (
        f"/{line}",
        f"/dead/{line}",
        f"/dead?task={line}",
        f"/?token={line}",
        f"/static/{line}",
    ):
        head, _, body = raw(page, f"GET {path} HTTP/1.1").partition(b"\r\n\r\n")
        assert b"evil=1" not in head, path
        assert b"\r\n\r\n" not in body
    browser = page.logged_in()
    answer = browser.post(f"dead?task={line}", data={"key": browser.key(), "do": "retry all"})
    assert "evil" not in str(answer.headers)
    assert page.log().split() == [page.url], "nor one of the log"


@pytest.mark.parametrize("options", [(), ("--allow-changes",)])
def test_without_a_token_the_page_answers_to_names_of_this_machine_alone(serve, options):
    """A name of another site may lead to this machine: its pages would be of one origin with it."""
    page = serve(*options, token=None)
    browser, own = page.browser(), 401 if options else 200
    for host, status in {
        f"127.0.0.1:{page.port}": own,
        f"localhost:{page.port}": own,
        "[::1]": own,
        "evil.example": 421,
        "127.0.0.1.evil.example": 421,
        "localhost@evil.example": 421,
        "localhost.": 421,
        "0.0.0.0": 421,
        "[": 421,
    }.items():
        answer = browser.get("/", headers={"host": host})
        assert answer.status_code == status, host
        if status == 421:
            assert "set-cookie" not in answer.headers
    same = {
        "host": "evil.example",
        "origin": "http://evil.example",
        "sec-fetch-site": "same-origin",
    }
    assert browser.post("dead", data={"do": "retry all now"}, headers=same).status_code == 421
