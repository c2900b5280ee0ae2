"""What can be done from the page to jobs in flight and to many dead ones, and what it counts."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from starlette.testclient import TestClient

from celery_superfetch.console.web import cache, create_app
from celery_superfetch.inspector import Inspector
from support.forms import browser_at, key
from support.waiting import eventually
from support.workers.bench import payload


def ids_in(page: str) -> list[str]:
    """Return the jobs that a question is about."""
    return re.findall(r'name="id" value="([^"]+)"', page)


def post(browser: TestClient, path: str, do: str, *ids: str) -> str:
    data = {"key": key(browser), "do": do, "id": list(ids)}
    answer = browser.post(path, data=data)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_job_that_runs_is_terminated_after_a_question(worker, shop, ledger, db, browse):
    worker(concurrency=1)
    sent = shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    browser = browse(read_only=False)
    assert f'value="{sent.id}"' in browser.get("/jobs?state=running").text
    asked = post(browser, "/jobs?state=running", "terminate", sent.id)
    assert "Revoke and terminate 1 job?" in asked
    assert db.running() == ["h"], "nothing has happened yet"
    done = post(browser, "/jobs?state=running", "terminate now", sent.id)
    assert "Told 1 worker to revoke 1 of 1 job." in done
    with pytest.raises(TaskRevokedError):
        sent.get(timeout=20)
    eventually(lambda: not db.private_lists())
    assert not db.dead()
    assert ledger.runs() == {"h": 1}


def test_a_run_that_its_pool_cannot_end_is_named(worker, shop, ledger, db, browse):
    worker(concurrency=1, pool="threads")
    sent = shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    done = post(browse(read_only=False), "/jobs?state=running", "terminate now", sent.id)
    assert "its pool cannot end a run" in done
    assert db.running() == ["h"]
    ledger.release()
    eventually(lambda: not db.private_lists())


def test_a_parked_job_that_is_revoked_does_not_run(worker, shop, ledger, db, browse):
    worker(concurrency=1)
    sent = shop.note.apply_async(("later",), countdown=8)
    eventually(db.parked)
    browser = browse(read_only=False)
    assert "Revoke…" in browser.get("/jobs?state=parked").text
    assert "Terminate…" not in browser.get("/jobs?state=parked").text
    asked = post(browser, "/jobs?state=parked", "revoke", sent.id)
    assert "Revoke 1 job?" in asked
    assert "Workers keep the revoked task id in memory" in asked
    told = post(browser, "/jobs?state=parked", "revoke now", sent.id)
    assert "Told 1 worker to revoke 1 of 1 job." in told
    eventually(lambda: not (db.parked() or db.length() or db.private_lists()), 40)
    assert "later" not in ledger.starts()


def test_a_revoke_that_no_worker_hears_is_said_to_be_none(browse):
    done = post(browse(read_only=False), "/jobs?state=parked", "revoke now", "an-id")
    assert "Revoked 0 of 1 job." in done
    assert "no worker answered" in done


def test_a_revoke_without_a_server_is_said_on_a_page(fresh_server, make_app):
    server = fresh_server()
    app = make_app(url=server.url(), options={"connect_retries_timeout": 1})
    browser = browser_at(create_app(app, read_only=False), raise_server_exceptions=False)
    form = {"do": "revoke now", "id": "an-id", "key": key(browser)}
    server.kill()
    answer = browser.post("/jobs?state=parked", data=form)
    assert answer.status_code == 503
    assert "The server cannot be reached" in answer.text


def test_all_that_match_are_put_back_after_a_question(bench, browse):
    for number in range(60):
        bench.killed(payload(f"n{number}", task="shop.note"))
    bench.killed(payload("other", task="shop.charge"))
    browser = browse(read_only=False)
    where = "/dead?task=note&queue=mail"
    assert "Retry all that match…" in browser.get(where).text
    asked = post(browser, where, "retry all")
    assert "Requeue 60 dead jobs of task note, queue mail?" in asked
    assert bench.client.llen("mail") == 0
    done = post(browser, where, "retry all now", *ids_in(asked))
    assert "Requeued 60 of 60 jobs." in done
    assert bench.client.llen("mail") == 60
    assert "shop.charge" in browser.get("/dead").text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", {"shop.a", "shop.b"}),
        ("task=shop.a", {"shop.a"}),
        ("queue=ma*", {"shop.a", "shop.b"}),
        ("queue=other", set()),
        ("reason=nothing+like+it", set()),
    ],
)
def test_dead_jobs_are_found_by_task_queue_and_reason(bench, browse, query, names):
    for task in ("shop.a", "shop.b"):
        bench.killed(payload(task, task=task))
    page = browse().get(f"/dead?{query}").text
    assert set(re.findall(r"<b>(shop\.\w)</b>", page)) == names


def test_dead_jobs_are_read_once_for_all_who_look_until_something_is_changed(
    bench, browse, monkeypatch
):
    monkeypatch.setattr(cache, "CACHE_S", 60.0)
    jobs = bench.killed(payload("a"), payload("b"))
    browser = browse(read_only=False)
    key(browser)
    paths = "/dead", "/dead?task=note", "/dead?first=1", f"/dead/{jobs[0].id}", "/dead/nobody"
    before = [browser.get(path).text for path in paths]
    assert bench.dead_set.delete(jobs[0].id)
    assert [browser.get(path).text for path in paths] == before
    assert "Deleted 1 of 1 job." in post(browser, "/dead", "delete for good", jobs[1].id)
    assert "The dead set is empty." in browser.get("/dead").text
    assert browser.get(f"/dead/{jobs[0].id}").status_code == 404


def test_what_is_kept_for_all_who_look_is_bounded(app, bench):
    page = cache.PageCache(app, ())
    for first in range(3 * cache.CACHED_ANSWERS):
        page.dead_jobs.page(first, {"task": f"shop.{first}"})
    assert len(page._known) == cache.CACHED_ANSWERS


def test_a_slow_read_holds_up_those_who_want_the_same_and_nobody_else(app, bench):
    """All reads waited for each other: one browser that searched took the others' overview from 12
    ms to 2 s."""
    page, slow, asked = cache.PageCache(app, ()), threading.Event(), list[int]()

    def question(_: Inspector) -> dict[str, Any]:
        asked.append(len(asked))
        assert slow.wait(30)
        return {"found": len(asked)}

    with ThreadPoolExecutor(3) as browsers:
        try:
            same = [browsers.submit(page._cached, "slow", question) for _ in range(2)]
            eventually(lambda: asked)
            assert page.overview()["verdict"]
            assert page.dead_jobs.page(0, {})["jobs"] == []
            assert not any(browser.done() for browser in same), "control: it is still being read"
        finally:
            slow.set()
        assert [browser.result(30) for browser in same] == [{"found": 1}] * 2
    assert asked == [0], "for both"
    assert not page._reading


def test_many_slow_searches_do_not_hold_up_the_overview(app, bench):
    page, slow, asked = cache.PageCache(app, ()), threading.Event(), list[int]()

    def question(_: Inspector) -> dict[str, Any]:
        asked.append(len(asked))
        assert slow.wait(30)
        return {}

    with ThreadPoolExecutor(2 * cache.SEARCHES_AT_ONCE) as browsers:
        try:
            found = [
                browsers.submit(page._cached, f"search {number}", question)
                for number in range(2 * cache.SEARCHES_AT_ONCE)
            ]
            eventually(lambda: len(asked) == cache.SEARCHES_AT_ONCE)
            assert page.overview()["verdict"]
            assert len(asked) == cache.SEARCHES_AT_ONCE, "the server is not asked for all at once"
        finally:
            slow.set()
        assert [browser.result(30) for browser in found] == [{}] * len(found)


@pytest.mark.parametrize("is_limited", [True, False])
def test_forty_browsers_on_one_slow_search_leave_threads_to_the_others(
    app, bench, monkeypatch, is_limited
):
    """The page has 40 threads, and those that waited for the search had them all."""
    threads, slow, asked = 40, threading.Event(), list[int]()
    if not is_limited:
        monkeypatch.setattr(cache, "SEARCH_THREADS", 10**6)

    def first(*_: Any) -> dict[str, Any]:
        asked.append(len(asked))
        assert slow.wait(60)
        return {"jobs": [], "owners": [], "more": 0, "complete": True}

    monkeypatch.setattr(cache.JobsSnapshot, "first", first)
    with ExitStack() as stack:
        browser = stack.enter_context(TestClient(create_app(app), base_url="http://localhost"))
        pool = stack.enter_context(ThreadPoolExecutor(threads + 1))
        stack.callback(slow.set)
        found = [pool.submit(browser.get, "/jobs?state=struck") for _ in range(threads)]
        if is_limited:
            refused = threads - cache.SEARCH_THREADS
            eventually(lambda: sum(one.done() for one in found) == refused)
            for one in filter(Future.done, found):
                assert one.result().status_code == 503
                assert one.result().headers["retry-after"] == str(cache.BUSY_S)
                assert "data-away" in one.result().text, "its script asks again"
                assert "cannot be reached" not in one.result().text
            assert browser.get("/").status_code == 200
            assert browser.get("/static/page.css").status_code == 200
        else:

            def is_stuck() -> bool:
                """Whether an overview has no answer: the page may still be taking up the others."""
                overview = pool.submit(browser.get, "/")
                return not wait([overview], timeout=1).done

            eventually(is_stuck, message="control: no thread is left")
        slow.set()
        answers = [one.result(60).status_code for one in found]
    assert answers.count(200) == (cache.SEARCH_THREADS if is_limited else threads)
    assert asked == [0], "the server is asked once for all"


def test_an_answer_from_before_a_change_is_not_kept(app, bench):
    page, answers = cache.PageCache(app, ()), iter([{"of": "before"}, {"of": "after"}])

    def question(_: Inspector) -> dict[str, Any]:
        answer = next(answers)
        if answer["of"] == "before":
            page.clear()  # another browser changes something while this is read
        return answer

    assert page._cached("name", question) == {"of": "before"}
    assert page._cached("name", question) == page._cached("name", question) == {"of": "after"}


def test_a_page_that_changes_nothing_ends_no_job(browse):
    browser = browse()
    for path, do in (
        ("/jobs", "terminate now"),
        ("/jobs", "revoke now"),
        ("/dead", "retry all now"),
    ):
        assert browser.post(path, data={"do": do, "id": "x"}).status_code == 403
    assert browse(read_only=False).post("/jobs", data={"do": "terminate now"}).status_code == 403


def test_the_overview_has_runs_a_minute(app, bench, monkeypatch):
    monkeypatch.setattr(cache, "RATE_WINDOW_S", 1.0)
    monkeypatch.setattr(cache, "CACHE_S", 0.01)
    page = cache.PageCache(app, ())
    assert page.overview()["rates"] == {}
    bench.client.hincrby(bench.keys.runs, "succeeded\tmail\tshop.note", 7)
    assert eventually(lambda: page.overview()["rates"].get("mail"))
    eventually(lambda: page.overview()["rates"].get("mail") == 0, message="a minute later")
