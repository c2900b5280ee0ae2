"""The page behind proxies: what it believes of whom, and where its answers lead."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from celery_superfetch.console.web import create_app
from support.servers.server import free_port
from support.visitors import TOKEN, Browser
from support.waiting import eventually
from support.workers.bench import payload

HOST = "jobs.example"

#: What a proxy sends on for a browser that came to https://jobs.example.
FORWARDED = {"host": HOST, "x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.7"}


def by_proxy(page, address, **headers):
    """A browser whose requests come from a proxy at this address of the machine."""
    transport = httpx.HTTPTransport(local_address=address)
    return Browser(base_url=page.url, transport=transport, headers={**FORWARDED, **headers})


def cookie_of_login(browser):
    answer = browser.post("login", data={"token": TOKEN})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "./", "whatever the proxy calls the page"
    [cookie] = answer.headers.get_list("set-cookie")
    return cookie


SECURE = re.compile(r"__Host-superfetch_login_\d+=[\w-]+; HttpOnly; .*Path=/; .*Secure", re.I)


@pytest.mark.parametrize(
    ("options", "believed"),
    [
        # The second is the control: a proxy elsewhere, as it was before --proxy.
        ((), {"127.0.0.1": True, "127.0.0.2": False}),
        (("--proxy", "127.0.0.2"), {"127.0.0.2": True, "127.0.0.1": True, "127.0.0.3": False}),
        (("--proxy", "10.0.0.1", "--proxy", "127.0.0.77/25"), {"127.0.0.3": True}),
    ],
)
def test_a_proxy_is_believed_if_it_is_on_this_machine_or_named(serve, options, believed):
    page = serve(*options)
    for address, is_believed in believed.items():
        modern = by_proxy(page, address, **{"sec-fetch-site": "same-origin"})
        cookie = cookie_of_login(modern)
        assert bool(SECURE.fullmatch(cookie)) == is_believed, cookie
        assert ("secure" in cookie.lower()) == is_believed
        said = f"through an untrusted proxy (address={address})"
        assert (said in page.log()) != is_believed
        assert TOKEN not in page.log()
        # A browser without Sec-Fetch-Site shows by Origin that its form is of https://jobs.example.
        old = by_proxy(page, address, origin=f"https://{HOST}")
        answer = old.post("login", data={"token": TOKEN})
        assert answer.status_code == (303 if is_believed else 403)
        if not is_believed:
            assert "--proxy must name it" in answer.text


def test_what_is_no_address_of_a_proxy_is_refused(cli):
    for wrong in ("*", "proxy.example", "10.0.0.0/33", ""):
        refused = cli("web", "--proxy", wrong, code=2)
        assert "give an address such as 10.0.0.5" in refused.err


def test_no_answer_leads_to_a_host_that_a_request_names(serve, bench):
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes")
    paths = ["", "dead", "jobs", "login", "logout", "static", f"dead/{job.id}", "static/page.css"]
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for host in (
        "evil.example",
        "evil.example:80",
        "[",
        f"127.0.0.1:{page.port}",
        "a@evil.example",
    ):
        browser = by_proxy(page, "127.0.0.1", host=host, **{"sec-fetch-site": "same-origin"})
        for path in (*paths, *(f"{path}/" for path in paths), "/evil.example", "\\evil.example/"):
            for answer in (
                browser.get(path, headers=bearer),
                browser.post(path, data={"token": TOKEN}),
            ):
                assert answer.status_code < 500, (host, path)
                assert answer.headers.get("location", "./") == "./", (host, path)


def test_what_a_client_says_of_its_address_is_no_text_in_the_log(serve):
    page = serve()
    for said, shown in {
        "192.0.2.7": "192.0.2.7",
        "\x1b[2J All is well": "unknown",
        "fe80::1%\x1b[2J": "fe80::1",
        "x" * 5000: "unknown",
    }.items():
        browser = by_proxy(
            page, "127.0.0.1", **{"x-forwarded-for": said, "origin": f"https://{HOST}"}
        )
        assert browser.post("login", data={"token": "wrong"}).status_code == 401
        assert page.log().splitlines()[-1].count(f"(address={shown})") == 1
    assert "\x1b" not in page.log()
    assert "xxx" not in page.log()


def test_pages_that_are_mounted_beside_each_other_have_cookies_of_their_own(make_app, bench):
    outer = Starlette(
        routes=[
            Mount(path, create_app(make_app(), read_only=False, token=TOKEN))
            for path in ("/ops/mail", "/ops/shop")
        ]
    )
    for scheme, paths in (("http", ["/ops/mail", "/ops/shop"]), ("https", ["/", "/"])):
        base = f"{scheme}://{HOST}"
        browser = TestClient(outer, base, headers={"origin": base})
        for path in ("/ops/mail/", "/ops/shop/"):
            assert browser.post(f"{path}login", data={"token": TOKEN}).status_code == 200
        assert [cookie.path for cookie in browser.cookies.jar] == paths
        for path in ("/ops/mail/", "/ops/shop/"):
            assert browser.get(path).status_code == 200, "both logins stand"
        assert len(set(browser.cookies)) == 2
        assert all(name.startswith("__Host-") == (scheme == "https") for name in browser.cookies)


# -- a real browser

HOP_BY_HOP = {b"content-length", b"transfer-encoding", b"connection", b"date"}


@contextmanager
def proxy(page: str, certificate) -> Iterator[str]:
    """What the pages advise nginx to be: TLS, and the headers. Yields its URL."""
    port, upstream = free_port(), httpx.Client(base_url=page)

    def forward(request: Request) -> Response:
        headers = [(n, v) for n, v in request.headers.raw if n not in HOP_BY_HOP]
        answer = upstream.request(
            request.method,
            request.url.path.lstrip("/"),
            params=request.query_params,
            headers=[*headers, (b"x-forwarded-proto", b"https")],
            content=request.state.body,
        )
        response = Response(answer.content, answer.status_code)
        kept = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() not in HOP_BY_HOP]
        response.raw_headers += kept
        return response

    async def forward_in_thread(request: Request) -> Response:
        request.state.body = await request.body()
        return await run_in_threadpool(forward, request)

    route = Route("/{path:path}", forward_in_thread, methods=["GET", "POST"])
    cert, key = certificate
    config = uvicorn.Config(
        Starlette(routes=[route]),
        port=port,
        log_level="warning",
        lifespan="off",
        ssl_certfile=str(cert),
        ssl_keyfile=str(key),
    )
    served = uvicorn.Server(config)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    eventually(lambda: served.started)
    try:
        yield f"https://localhost:{port}/"
    finally:
        served.should_exit = True
        thread.join(10)
        upstream.close()


def test_a_real_browser_logs_in_by_https_and_its_forms_are_done(serve, bench, browser, certificate):
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes")
    with proxy(page.url, certificate) as url:
        browser.get(url)
        browser.find_element("css selector", "input[type=password]").send_keys(TOKEN, "\n")
        eventually(lambda: "Log out" in browser.page_source)
        assert browser.current_url == url
        [cookie] = browser.get_cookies()
        assert cookie["name"].startswith("__Host-superfetch_login_")
        assert (cookie["secure"], cookie["httpOnly"], cookie["path"]) == (True, True, "/")
        browser.get(f"{url}dead/{job.id}")
        browser.find_element("css selector", "button[value=retry]").click()
        eventually(lambda: not len(bench.dead_set))
        browser.find_element("css selector", ".logout button").click()
        eventually(lambda: "<h1>Log in</h1>" in browser.page_source)
        assert browser.get_cookies() == []
