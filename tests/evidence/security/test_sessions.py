"""Who is logged in at the page: sessions that end, and a token that is made up and shown once."""

from __future__ import annotations

import re
import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from celery_superfetch.console.web import create_app
from celery_superfetch.console.web.sessions import SESSION_S, SESSIONS_MOST, Sessions
from support.forms import browser_at
from support.visitors import TOKEN
from support.waiting import eventually
from support.workers.bench import payload


def login_cookies(page, **headers):
    """The value of a login's cookie, and all that the browser is told about it."""
    answer = page.browser(**headers).post("login", data={"token": TOKEN})
    [cookie] = answer.headers.get_list("set-cookie")
    name, value = re.fullmatch(r"(\w+)=([\w-]+);.*", cookie).groups()
    return name, value, cookie.lower()


# -- sessions


def test_each_login_is_a_session_of_its_own_that_ends_after_twelve_hours(serve):
    page = serve()
    logins = [login_cookies(page) for _ in range(3)]
    assert len({value for _, value, _ in logins}) == 3, "each is random"
    for name, value, cookie in logins:
        assert name == f"superfetch_login_{page.port}"
        assert len(value) >= 43, "256 bits"
        assert TOKEN not in value
        for word in ("httponly", "samesite=lax", "path=/", "max-age=43200"):
            assert word in cookie.split("; "), word
        assert httpx.get(page.url, cookies={name: value}).status_code == 200
    for forged in ("", "x" * 43, TOKEN, value[:-1]):
        assert httpx.get(page.url, cookies={name: forged}).status_code == 401


def test_a_logout_ends_the_session_for_a_copy_of_its_cookie_too(serve):
    page = serve()
    browser, other = page.logged_in(), page.logged_in()
    assert "Log out" in browser.get("/").text
    stolen = dict(browser.cookies)
    for key in ("", other.key()):
        assert browser.post("logout", data={"key": key}).status_code == 403
    assert browser.get("logout").status_code == 405
    assert httpx.get(page.url, cookies=stolen).status_code == 200, "control: not logged out yet"
    answer = browser.post("logout", data={"key": browser.key()})
    assert (answer.status_code, answer.headers["location"]) == (303, "./")
    assert not browser.cookies
    assert httpx.get(page.url, cookies=stolen).status_code == 401
    assert other.get("/").status_code == 200, "another browser stays logged in"


def test_a_planted_cookie_becomes_no_session_and_a_login_ends_the_one_before(serve):
    page = serve()
    browser, name = page.browser(), f"superfetch_login_{page.port}"
    browser.cookies.set(name, "x" * 43, domain="127.0.0.1", path="/")
    assert browser.get("/").status_code == 401
    for _ in range(2):
        before = browser.cookies[name]
        assert browser.post("login", data={"token": TOKEN}).status_code == 303
        assert browser.cookies[name] != before
        assert httpx.get(page.url, cookies={name: before}).status_code == 401


def test_a_browser_is_logged_in_at_two_pages_on_two_ports(serve):
    one, two = serve(), serve()
    browser = one.logged_in()
    browser.post(f"{two.url}login", data={"token": TOKEN}, headers={"origin": two.url[:-1]})
    for page in (one, two):
        assert browser.get(page.url).status_code == 200, "the other has not taken its cookie"
        strays = {name: v for name, v in browser.cookies.items() if str(page.port) not in name}
        assert httpx.get(page.url, cookies=strays).status_code == 401


def test_a_restart_of_the_page_ends_all_sessions(serve):
    page = serve()
    browser = page.logged_in()
    page.signal(signal.SIGTERM)
    page.wait_exit()
    again = serve(port=page.port)
    assert browser.get(again.url).status_code == 401
    assert again.logged_in().get("/").status_code == 200


def test_the_key_of_a_form_is_that_of_one_session(serve, bench):
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes")
    browser, other = page.logged_in(), page.logged_in()
    assert len(dict(browser.cookies)) == 1, "no second cookie could be planted"
    before = browser.key()
    assert browser.key() == before
    browser.post("login", data={"token": TOKEN})
    for key in (other.key(), before, browser.cookies[f"superfetch_login_{page.port}"]):
        assert browser.send_form("dead", "retry", job.id, key=key) == 403
    assert len(bench.dead_set) == 1
    assert browser.send_form("dead", "retry", job.id) == 200
    assert not len(bench.dead_set)


def test_a_session_ends_however_much_it_is_used(make_app, bench, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(Sessions.__init__, "__defaults__", (lambda: now[0],))
    browser = browser_at(create_app(make_app(), token=TOKEN))
    browser.post("/login", data={"token": TOKEN})
    [cookie] = browser.cookies.items()
    kept = {"cookie": "=".join(cookie)}  # however long the browser keeps it
    for hours, status in ((6, 200), (11.9, 200), (12, 401), (100, 401)):
        now[0] = 1000 + hours * 3600
        assert browser.get("/", headers=kept).status_code == status, hours


def test_sessions_are_bounded_and_the_oldest_ends_first():
    now = [0.0]
    opened = Sessions(lambda: now[0])
    ids = [opened.begin() for _ in range(SESSIONS_MOST + 10)]
    assert len(opened._open_by_digest) == SESSIONS_MOST
    assert [opened.is_open(id) for id in ids] == [False] * 10 + [True] * SESSIONS_MOST
    now[0] = SESSION_S
    assert not any(map(opened.is_open, ids))
    opened.begin()
    assert len(opened._open_by_digest) == 1, "what has ended takes no memory"


# -- a token that is made up


def printed(page):
    """The address, the code in it, and the token, as the page has printed them."""
    address, line, *others = page.log().splitlines()
    assert all("Wrong token for the page" in other for other in others)
    root, code = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)\?token=([\w-]{32})", address).groups()
    assert root == page.url
    return address, code, re.fullmatch(r"This address logs in once.*: ([\w-]{32})", line)[1]


def test_with_changes_allowed_a_local_user_needs_the_token_that_was_made_up(serve, bench):
    [job] = bench.killed(payload("a"))
    page = serve("--allow-changes", token=None)
    _, code, token = printed(page)
    stranger = page.browser()
    views = "/", "/dead", "/jobs", "/workers", "/recurring", f"/jobs/{job.id}", f"/dead/{job.id}"
    for path in (*views, "/?token=", "/?token=x", "/?token"):
        assert stranger.get(path).status_code == 401
    assert stranger.get("/", params={"token": token}).status_code == 401, "never in an address"
    assert stranger.post("login", data={"token": code}).status_code == 401, "nowhere else"
    forms = (("dead", {"do": "retry", "id": job.id}), ("/", {}), (f"?token={code}", {}))
    assert [stranger.post(path, data=data).status_code for path, data in forms] == [401, 405, 405]

    assert stranger.head("/", params={"token": code}).status_code == 401, "a look at the link"
    browser = page.browser()
    for _ in range(2):  # again in the same browser: it is logged in
        answer = browser.get("/dead", params={"token": code})
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        assert code not in str(answer.headers)
        assert not answer.content
    answer = browser.get(f"/dead/{job.id}", params={"token": code})
    assert (answer.status_code, answer.headers["location"]) == (303, "../")
    assert stranger.get("/", params={"token": code}).status_code == 401, "once, for one browser"
    assert browser.send_form("dead", "retry", job.id) == 200
    assert page.logged_in(token).get("/").status_code == 200
    bearer = {"authorization": f"Bearer {token}"}
    assert httpx.get(page.url, headers=bearer).status_code == 200
    foreign = browser.get("/", headers={"host": "evil.example", **bearer})
    assert foreign.status_code == 421, "other names need a token that was given"
    assert printed(page), "and nothing else"


def test_of_many_browsers_at_once_the_printed_address_lets_one_in(serve):
    page = serve("--allow-changes", token=None)
    address, *_ = printed(page)
    with ThreadPoolExecutor(8) as browsers:
        answers = [*browsers.map(lambda _: httpx.get(address).status_code, range(16))]
    assert sorted(answers) == [303] + [401] * 15


def test_a_token_that_was_given_is_none_in_an_address(serve):
    """It would stay in bookmarks, and in the logs of proxies."""
    page = serve("--allow-changes")
    assert page.log().split() == [page.url]
    answer = httpx.get(page.url, params={"token": TOKEN})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_a_page_that_changes_nothing_is_open_on_this_machine_alone(serve):
    """The control of the token that is made up: what a local user sees without one."""
    page = serve(token=None)
    assert page.log().split() == [page.url]
    browser = page.browser()
    assert browser.get("/").status_code == 200
    assert "Log out" not in browser.get("/").text
    assert browser.send_form("dead", "retry all now") == 403


@pytest.mark.parametrize("token", ["", "short"])
def test_a_token_that_is_too_short_does_not_open_the_page(cli, token):
    refused = cli("web", "--allow-changes", "--token", token, code=1)
    assert "at least 12 characters" in refused.err


def test_what_a_real_browser_keeps_of_the_printed_address_is_worth_nothing(
    serve, browser, tmp_path
):
    page = serve("--allow-changes", token=None)
    address, code, token = printed(page)
    browser.get(address)
    assert browser.current_url == page.url
    assert "Log out" in browser.page_source
    assert browser.execute_script("return document.referrer") == ""
    assert code not in browser.execute_script("return JSON.stringify(performance.getEntries())")
    browser.find_element("link text", "Dead jobs").click()
    assert browser.execute_script("return document.referrer") == page.url
    browser.back()
    assert browser.current_url == page.url
    browser.find_element("css selector", ".logout button").click()
    eventually(lambda: "<h1>Log in</h1>" in browser.page_source)
    browser.get(address)
    assert "no longer logs in" in browser.page_source
    browser.find_element("css selector", "input[type=password]").send_keys(token, "\n")
    eventually(lambda: "Log out" in browser.page_source)
    browser.close()  # writes its history, which names the address, since it was opened
    [history] = tmp_path.glob("profile/*/History")
    kept = eventually(lambda: history.read_bytes())
    assert token.encode() not in kept
    assert httpx.get(address).status_code == 401
    assert printed(page) == (address, code, token), "no request is in the log"
