"""Forms of other sites, other ports and programs without a key: none of them changes anything."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from celery_superfetch.console.web import create_app
from support.forms import browser_at, key
from support.visitors import CHANGES
from support.waiting import eventually
from support.workers.bench import payload


def state(bench):
    """What a form could have changed."""
    return [job.id for job in bench.dead_set.page()], bench.queue(), bench.client.dbsize()


# -- without a key, and read-only


def test_no_post_without_its_key_changes_anything(serve, bench):
    """Each action with no key, an empty and a wrong one, of a browser that may see the page."""
    [job, _] = bench.killed(payload("a"), payload("b"))
    page = serve("--allow-changes")
    browser, before = page.logged_in(), state(bench)
    refused = []
    for path, do in CHANGES:
        for keyless in ({}, {"key": ""}, {"key": "x" * 64}):
            answer = browser.post(path, data={"do": do, "id": job.id, **keyless})
            refused.append(answer.status_code)
    assert refused == [403] * 3 * len(CHANGES)
    assert state(bench) == before
    assert browser.send_form("dead", "retry", job.id) == 200, "control: with its key it is done"
    assert state(bench) != before


def test_a_read_only_page_changes_nothing_also_by_forms_with_its_key(serve, bench):
    [job] = bench.killed(payload("a"))
    page = serve()
    browser, before = page.logged_in(), state(bench)
    good = browser.key()
    assert [browser.send_form(path, do, job.id, key=good) for path, do in CHANGES] == [403] * len(
        CHANGES
    )
    assert state(bench) == before


# -- who has sent a form


def test_a_form_counts_only_if_the_browser_says_that_it_is_from_the_page(serve, bench):
    jobs = bench.killed(*(payload(str(number)) for number in range(40)))
    page = serve("--allow-changes")
    browser = page.logged_in()
    del browser.headers["origin"]
    good, own = browser.key(), page.url[:-1]
    port = page.port
    senders = {
        200: [
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "same-origin", "origin": own},
            {"origin": own},
            {"referer": page.url},
            {"referer": f"{page.url}dead?task=a&first=0"},
            {"origin": f"HTTP://127.0.0.1:{port}"},
        ],
        403: [
            {},  # an old browser whose page says `no-referrer`
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},  # another port of this host
            {"sec-fetch-site": "cross-site", "origin": own, "referer": own},
            {"sec-fetch-site": ""},
            {"origin": "null"},
            {"origin": ""},
            {"origin": f"http://127.0.0.1:{port + 1}"},
            {"origin": f"http://127.0.0.1:{port + 1}", "referer": page.url},
            {"origin": f"https://127.0.0.1:{port}"},
            {"origin": f"http://localhost:{port}"},
            {"origin": f"http://127.0.0.1:{port}.evil.example"},
            {"origin": f"http://evil.example#{own}"},
            {"origin": f"http://127.0.0.1:{port}@evil.example"},
            {"origin": "http://["},
            {"origin": "http://127.0.0.1:99999999"},
            {"referer": f"http://evil.example/{page.url}"},
            {"referer": f"http://127.0.0.1:{port + 1}/"},
        ],
    }
    for status, headers in ((status, h) for status, many in senders.items() for h in many):
        job, size = jobs.pop(), len(bench.dead_set)
        assert browser.send_form("dead", "retry", job.id, key=good, headers=headers) == status, (
            headers
        )
        assert len(bench.dead_set) == size - (status == 200), headers
    far = {"origin": "http://evil.example"}
    assert browser.post("login", data={"token": "x"}, headers=far).status_code == 403
    assert browser.post("logout", data={"key": good}, headers=far).status_code == 403


def test_a_cookie_that_another_port_plants_is_no_key(serve, bench):
    """Cookies know no ports: a page on another port of this host can set those of this page. Where
    no login is asked for, it would know the key, too."""
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes", token=None)
    victim = page.browser()
    victim.get(page.log().split()[0])
    attacker = httpx.Client(base_url=page.url, headers=victim.headers)
    planted = f"superfetch_forms_{page.port}"
    victim.cookies.set(planted, "x", domain="127.0.0.1", path="/")
    attacker.cookies.set(planted, "x")
    assert attacker.get("/").status_code == 401
    other = f"http://127.0.0.1:{page.port + 1}"
    for wrong in ("x", ""):
        for headers in ({"origin": other}, {}):
            assert victim.send_form("dead", "retry", job.id, key=wrong, headers=headers) == 403
    assert len(bench.dead_set) == 1
    assert victim.send_form("dead", "retry", job.id) == 200, "control: the page's own form"


def test_where_no_login_is_asked_for_the_origin_alone_keeps_a_planted_key_out(bench, make_app):
    """Mounted behind a login of yours: an attacker who plants a cookie knows the key to it."""
    jobs = bench.killed(payload("a"), payload("b"))
    page = create_app(make_app(), read_only=False)
    victim, attacker = browser_at(page), browser_at(page)
    for one in (victim, attacker):
        one.headers["cookie"] = "superfetch_forms_80=planted"
    form = {"key": key(attacker), "do": "retry", "id": jobs[0].id}
    for headers in (
        {"origin": "http://localhost:8000"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "same-site", "origin": "http://localhost"},
    ):
        assert victim.post("/dead", data=form, headers=headers).status_code == 403
    assert len(bench.dead_set) == 2
    assert victim.post("/dead", data=form).status_code == 200, "control: all but the origin fits"
    assert len(bench.dead_set) == 1


# -- names of this machine


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


# -- in a real browser

LURE = """<!doctype html><form id="lure" method="post" action="{page}dead">
<input name="id" value="{id}"><input name="do" value="retry"><input name="key" value="{key}"></form>
<script>document.cookie = "{cookie}"; document.getElementById("lure").submit()</script>"""


@contextmanager
def site(text: str) -> Iterator[str]:
    """A page on another port of this host; yields its URL."""

    class Lure(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Be silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lure) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/"
        finally:
            serving.shutdown()
            thread.join(10)


def test_a_page_on_another_port_cannot_use_the_session_of_a_real_browser(serve, bench, browser):
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes", token=None)
    browser.get(page.log().split()[0])
    browser.get(f"{page.url}dead/{job.id}")
    field = browser.find_element("css selector", "form[action$=dead] input[name=key]")
    good = field.get_attribute("value")
    cookie = f"superfetch_forms_{page.port}=x; path=/"
    # Also with the right key, as if it had leaked: that the form is from elsewhere is enough.
    for stolen in ("x", good):
        with site(LURE.format(page=page.url, id=job.id, key=stolen, cookie=cookie)) as lure:
            browser.get(lure)
            eventually(lambda: browser.current_url == f"{page.url}dead")
            assert "does not confirm that this form was sent from this page" in browser.page_source
    assert len(bench.dead_set) == 1
    browser.get(f"{page.url}dead/{job.id}")
    browser.find_element("css selector", "button[value=retry]").click()
    eventually(lambda: not len(bench.dead_set), message="control: the page's own form is done")


def test_an_address_alone_changes_nothing(serve, bench):
    """A link, a picture, a prefetch."""
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes")
    browser, before = page.logged_in(), state(bench)
    good = browser.key()
    for path in ("dead", "jobs", f"dead/{job.id}", ""):
        browser.get(path, params={"do": "retry", "id": job.id, "key": good})
        for method in ("PUT", "DELETE", "PATCH"):
            assert browser.request(method, path).status_code == 405
    assert browser.get("/").status_code == 200, "and logs nobody out"
    assert state(bench) == before
