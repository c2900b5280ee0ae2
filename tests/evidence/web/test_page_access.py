"""Who may see the page, and what a browser may change through it."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from celery_superfetch.console.links import RUNBOOK_URL
from celery_superfetch.console.web import create_app
from celery_superfetch.errors import ConfigError
from support.forms import browser_at, key
from support.workers.bench import payload

TOKEN = "correct-horse-battery"


# -- what is changed


def test_some_are_put_back_and_one_that_is_gone_is_told(bench, browse):
    raws = [payload(n) for n in range(3)]
    jobs = bench.killed(*raws)
    browser = browse(read_only=False)
    ids = [jobs[0].id, jobs[2].id, "0" * 40]
    page = browser.post("/dead", data={"key": key(browser), "id": ids, "do": "retry"}).text
    assert "Requeued 2 of 3 jobs." in page
    assert "no job &#39;000" in page
    assert bench.queue() == [raws[0], raws[2]]
    assert len(bench.dead_set) == 1
    assert jobs[1].id in page


def test_to_delete_it_asks_first(bench, browse):
    jobs = bench.killed(*(payload(n) for n in range(3)))
    browser = browse(read_only=False)
    form = {"key": key(browser), "id": [job.id for job in jobs[:2]], "do": "delete"}
    assert "Delete 2 jobs for good?" in browser.post("/dead", data=form).text
    assert len(bench.dead_set) == 3
    page = browser.post("/dead", data={**form, "do": "delete for good"}).text
    assert "Deleted 2 of 2 jobs." in page
    assert [job.id for job in bench.dead_set.page()] == [jobs[2].id]
    assert bench.queue() == []


def test_who_may_only_look_changes_nothing(bench, browse):
    [job] = bench.killed(payload("a"))
    browser = browse()
    for path in ("/dead", f"/dead/{job.id}"):
        assert "checkbox" not in browser.get(path).text
        assert 'value="retry"' not in browser.get(path).text
    form = {"key": key(browser), "id": job.id}
    for do in ("retry", "delete", "delete for good"):
        assert browser.post("/dead", data={**form, "do": do}).status_code == 403
    assert len(bench.dead_set) == 1


def test_a_form_of_another_site_changes_nothing(bench, browse):
    [job] = bench.killed(payload("a"))
    browser = browse(read_only=False)
    good = {"key": key(browser), "id": job.id, "do": "retry"}
    far = {"sec-fetch-site": "cross-site"}
    for data, headers in (
        ({**good, "key": ""}, {}),
        ({**good, "key": "x" * 32}, {}),
        ({"id": job.id, "do": "retry"}, {}),
        (good, far),
        (good, {"sec-fetch-site": "same-site"}),
    ):
        assert browser.post("/dead", data=data, headers=headers).status_code == 403
    stranger = browse(read_only=False)  # has no cookie
    assert stranger.post("/dead", data=good).status_code == 403
    assert stranger.post("/dead", data={**good, "key": ""}).status_code == 403
    assert browser.get("/dead?do=retry&id=" + job.id).status_code == 200
    assert len(bench.dead_set) == 1
    assert browser.post("/dead", data={**good, "do": "nothing"}).status_code == 400
    assert browser.post("/dead", content=b"x" * 1_000_001).status_code == 413
    assert "Requeued 1 of 1 job" in browser.post("/dead", data=good).text


# -- who may see it


def test_a_token_opens_it_in_a_header_or_by_the_form(bench, browse):
    [job] = bench.killed(payload("a"))
    browser = browse(token=TOKEN, read_only=False)
    views = (
        "/",
        "/jobs",
        f"/jobs/{job.id}",
        "/charts",
        "/server",
        "/audit",
        "/dead",
        f"/dead/{job.id}",
    )
    for path in views:
        page = browser.get(path)
        assert page.status_code == 401
        assert job.id not in page.text
    assert browser.post("/dead", data={"id": job.id, "do": "retry"}).status_code == 401
    for wrong in ("", "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
        assert browser.get("/", headers={"authorization": wrong}).status_code == 401
    assert browser.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert browser.get("/").status_code == 401
    assert browser.post("/login", data={"token": "wrong"}).status_code == 401
    assert browser.get("/static/page.css").status_code == 200, "the form wants it"
    assert browser.post("/login", data={"token": TOKEN}).status_code == 200
    assert browser.get("/").status_code == 200
    assert TOKEN not in str(dict(browser.cookies))
    other = browse(token=TOKEN + "2")
    other.cookies = browser.cookies
    assert other.get("/").status_code == 401, "another token ends the login"


def test_a_short_token_is_refused(app):
    for token in ("", "short"):
        with pytest.raises(ConfigError, match="at least"):
            create_app(app, token=token)


def test_a_token_that_no_header_carries_is_refused(app):
    with pytest.raises(ConfigError, match="ASCII"):
        create_app(app, token="größe-der-batterie")


def test_it_is_mounted_under_a_prefix_with_links_that_lead_there(app, bench):
    jobs = bench.killed(payload("a"), payload("b"))
    page = create_app(app, read_only=False, token=TOKEN)
    outer = Starlette(routes=[Mount("/ops/jobs", page)])
    browser = browser_at(outer)
    answer = browser.post("/ops/jobs/login", data={"token": TOKEN})
    assert (answer.status_code, answer.url.path) == (200, "/ops/jobs/")
    assert all(cookie.path == "/ops/jobs" for cookie in browser.cookies.jar)
    in_dead_set = "dead", f"dead/{jobs[0].id}"
    views = (
        "",
        "jobs",
        f"jobs/{jobs[1].id}",
        "charts",
        "charts?hours=24",
        "server",
        "audit",
        *in_dead_set,
    )
    for path in (f"/ops/jobs/{view}" for view in views):
        text = browser.get(path).text
        links = re.findall(r'(?:href|src|action)="([^"]+)"', text)
        assert links
        for link in links:
            if link.startswith(f"{RUNBOOK_URL}#"):
                continue
            url = browser.get(path).url.join(link.replace("&amp;", "&"))
            assert url.path.startswith("/ops/jobs/"), link
            wanted = 405 if url.path.endswith("/logout") else 200  # a form alone leads there
            assert browser.get(str(url)).status_code == wanted, link
    [form_key] = set(re.findall(r'name="key" value="([^"]+)"', text))
    form = {"key": form_key, "id": jobs[0].id, "do": "retry"}
    assert "Requeued 1 of 1 job" in browser.post("/ops/jobs/dead", data=form).text
