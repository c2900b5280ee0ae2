"""Many jobs at once from the page: the count in the question, progress, interruptions."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from typing import Any

import pytest

from celery_superfetch.console.web import create_app
from celery_superfetch.model.job import digest
from celery_superfetch.store.audit_list import AuditEntry, AuditList
from support.forms import browser_at, key
from support.visitors import Page
from support.waiting import eventually
from support.workers.bench import Bench, payload


def post(browser: Any, path: str, do: str, ids: Any = (), **how: Any) -> Any:
    data = {"key": key(browser), "do": do, "id": list(ids)}
    return browser.post(path, data=data, **how)


def ask(browser: Any, path: str, do: str) -> tuple[str, str, list[str]]:
    """Ask for an action on all that match: the question, its button, and the ids in its form."""
    page = post(browser, path, do).text
    [title] = re.findall(r"<h1>(.+?)</h1>", page)
    [button] = re.findall(r'name="do" value="([^"]+)"', page)
    return title, button, re.findall(r'name="id" value="([^"]+)"', page)


def begin(browser: Any, path: str, button: str, ids: list[str]) -> str:
    """Confirm an action on many; the path of its page."""
    answer = post(browser, path, button, ids, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    assert re.fullmatch(r"(\./|(\.\./)+)audit/\d{13}-[0-9a-f]{8}", answer.headers["location"])
    return "/audit/" + answer.headers["location"].rpartition("/")[2]


def entry(bench: Bench) -> AuditEntry:
    """The latest change."""
    return AuditList(bench.database).newest(0, 1)[0]


def kill_many(bench: Bench, count: int) -> list[bytes]:
    """Put jobs into the dead set in one round trip: copies of one that was killed."""
    [first] = bench.killed(payload("n0"))
    cap = bench.client.hget(bench.keys.dead_caps, first.id)
    died_at = int(bench.client.zscore(bench.keys.dead, first.id))
    raws = [payload(f"n{number}") for number in range(count)]
    with bench.client.pipeline(transaction=False) as pipe:
        for at, raw in enumerate(raws[1:], 1):
            job = replace(first, id=digest(raw), payload=raw, task_id=f"n{at}")
            pipe.hset(bench.keys.dead_jobs, job.id, job.dump(10**6))
            pipe.hset(bench.keys.dead_caps, job.id, cap)
            pipe.zadd(bench.keys.dead, {job.id: died_at})
            pipe.zadd(cap, {job.id: died_at})
        pipe.execute()
    assert len(bench.dead_set) == count
    return raws


def test_all_that_were_counted_are_retried_and_no_other_job(bench, browse):
    raws = kill_many(bench, 350)
    bench.killed(payload("other", task="shop.charge"))
    browser = browse(read_only=False)
    where = "/dead?task=note"
    title, button, ids = ask(browser, where, "retry all")
    assert title == "Requeue 350 dead jobs of task note?"
    assert len(ids) == 350
    assert not bench.client.llen("mail"), "nothing has happened yet"
    late = bench.killed(*(payload(f"late{number}") for number in range(5)))
    page = begin(browser, where, button, ids)
    eventually(lambda: entry(bench).state == "complete")
    assert sorted(bench.queue()) == sorted(raws)
    left = {job.id for job in bench.dead_set}
    assert {job.id for job in late} <= left, "what died after the count stays"
    assert len(left) == 6
    shown = browser.get(page).text
    assert "Complete: 350 of 350 jobs" in shown
    assert '<progress max="350" value="350"' in shown
    assert "Requeued 350 of 350 jobs." in shown
    assert "Continue</button>" not in shown
    assert 'http-equiv="refresh"' not in shown
    assert entry(bench).subject == "task note"
    assert page[1:] in browser.get("/audit").text


def test_all_that_match_are_deleted_and_those_that_left_are_counted(bench, browse):
    kill_many(bench, 150)
    browser = browse(read_only=False)
    title, button, ids = ask(browser, "/dead", "delete all")
    assert title == "Delete all 150 dead jobs for good?"
    bench.dead_set.delete(*ids[:30])
    page = begin(browser, "/dead", button, ids)
    eventually(lambda: entry(bench).state == "complete")
    assert not len(bench.dead_set)
    assert not bench.client.llen("mail")
    shown = browser.get(page).text
    assert "Deleted 120 of 150 jobs. 30 were no longer there." in shown
    assert "Done: 120. Not done: 30. Left: 0." in shown
    refused = post(browser, "/dead", "delete all")
    assert (refused.status_code, "No job matches" in refused.text) == (409, True)


def test_no_form_of_a_stranger_and_none_of_a_reader_begins_or_continues_one(bench, browse):
    kill_many(bench, 120)
    ids = bench.dead_set.ids()
    reading, changing = browse(), browse(read_only=False)
    good = {"key": key(changing), "do": "delete all now", "id": ids}
    orders = (
        *(("/dead", do) for do in ("retry all", "retry all now", "delete all", "delete all now")),
        *(("/jobs", do) for do in ("revoke all", "revoke all now", "terminate all now")),
        *(("/queues?name=mail", do) for do in ("revoke", "revoke all", "revoke all now")),
        ("/audit/x", "continue"),
    )
    for path, do in orders:
        assert post(reading, path, do, ids).status_code == 403, (path, do)
        for data, headers in (
            ({**good, "do": do, "key": "another"}, {}),
            ({**good, "do": do}, {"origin": "https://evil.example"}),
            ({**good, "do": do}, {"sec-fetch-site": "cross-site"}),
        ):
            assert changing.post(path, data=data, headers=headers).status_code == 403, (path, do)
        guarded = browse(read_only=False, token="correct-horse-battery")
        assert guarded.post(path, data={**good, "do": do}).status_code == 401
    assert changing.get("/audit/x?do=continue").status_code == 404
    assert "Delete all" not in reading.get("/dead").text
    assert len(bench.dead_set) == 120
    assert not AuditList(bench.database).ids()
    changing.post("/dead", data=good)
    eventually(lambda: not len(bench.dead_set), message="the control: its own form is obeyed")


@pytest.mark.parametrize("id", ["x", "%0d%0aset-cookie:%20a=b", "..%2fdead", "%00", "a" * 5000])
def test_a_change_that_is_not_there_is_404_and_no_text_of_its_address_is_a_header(browse, id):
    browser = browse(read_only=False)
    assert browser.get(f"/audit/{id}").status_code == 404
    answer = post(browser, f"/audit/{id}", "continue", follow_redirects=False)
    assert answer.status_code in (404, 409)
    assert "a=b" not in str(answer.headers)


def test_one_bulk_action_runs_at_a_time_and_its_page_shows_how_far_it_is(
    fresh_server, make_app, bench
):
    results = fresh_server()
    kill_many(bench, 150)
    browser = browser_at(create_app(make_app(result_url=results.url()), read_only=False))
    _, button, ids = ask(browser, "/dead", "retry all")
    results.pause()
    page = begin(browser, "/dead", button, ids)
    eventually(lambda: bench.client.hlen(bench.keys.bulk) == 1)
    shown = browser.get(page).text
    assert "Under way: 0 of 150 jobs" in shown
    assert '<progress max="150" value="0"' in shown
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in shown
    assert "Continue</button>" not in shown
    refused = post(browser, "/dead", button, ids)
    assert refused.status_code == 503
    assert "Another change of many jobs is running" in refused.text
    assert post(browser, page, "continue").status_code == 409, "it is under way"
    assert browser.get("/").status_code == 200
    results.resume()
    eventually(lambda: entry(bench).state == "complete")
    assert bench.client.llen("mail") == 150
    eventually(lambda: not bench.client.exists(bench.keys.bulk), message="its ids are removed")


def test_a_server_that_dies_in_the_middle_loses_nothing_and_the_rest_is_continued(
    fresh_server, make_app
):
    count = 8000  # enough to be in the middle, also if this test gets no time for a while
    server = fresh_server(appendonly=True, appendfsync="no")
    bench = Bench(server.client())
    raws = kill_many(bench, count)
    app = make_app(url=server.url(), options={"connect_retries_timeout": 1})
    browser = browser_at(create_app(app, read_only=False), raise_server_exceptions=False)
    _, button, ids = ask(browser, "/dead", "retry all")
    page = begin(browser, "/dead", button, ids)
    eventually(lambda: entry(bench).dealt_with, every=0.001)
    server.kill()
    eventually(lambda: "cannot be reached" in browser.get(page).text)
    server.start()
    bench = Bench(server.client())
    shown = eventually(
        lambda: text if "Interrupted" in (text := browser.get(page).text) else None,
        message="it is said that it was interrupted",
    )
    assert "The jobs that are left are where they were." in shown
    assert "Continue</button>" in shown
    moved, left = bench.client.llen("mail"), len(bench.dead_set)
    print(f"{moved} moved, {left} left")
    assert moved + left == count, "each job is in one place"
    assert left, "the control: it was in the middle"
    for lock in bench.client.scan_iter(bench.keys.lock("retry:*")):
        bench.client.delete(lock)  # as after a minute
    answer = post(browser, page, "continue")
    assert answer.status_code == 200
    eventually(lambda: entry(bench).state == "complete")
    assert sorted(bench.queue()) == sorted(raws), "each job once"
    assert not len(bench.dead_set)
    assert len(AuditList(bench.database).ids()) == 1, "it is one change"


def test_a_page_that_is_killed_in_the_middle_is_continued_by_the_next_one(
    env, bench, tmp_path, keep
):
    count = 3000
    raws = kill_many(bench, count)
    page = keep(Page(env(), tmp_path, "--allow-changes")).wait_ready()
    browser = page.logged_in()
    _, button, ids = ask(browser, "dead", "retry all")
    change = begin(browser, "dead", button, ids)[1:]
    eventually(lambda: entry(bench).dealt_with, every=0.001)
    page.signal(signal.SIGKILL)
    page.wait_exit()
    moved, left = bench.client.llen("mail"), len(bench.dead_set)
    assert moved + left == count
    assert left, "the control: it was in the middle"
    again = keep(Page(env(), tmp_path, "--allow-changes")).wait_ready()
    browser = again.logged_in()
    assert "Under way" in browser.get(change).text, "as far as anyone knows"
    id = change.rpartition("/")[2]
    row = json.loads(bench.client.hget(bench.keys.audit, id))
    row["updated_at"] -= 61_000
    bench.client.hset(bench.keys.audit, id, json.dumps(row))  # a minute later
    shown = eventually(lambda: text if "Unfinished" in (text := browser.get(change).text) else None)
    assert "Continue</button>" in shown
    for lock in bench.client.scan_iter(bench.keys.lock("retry:*")):
        bench.client.delete(lock)
    assert browser.send_form(change, "continue") == 303
    eventually(lambda: entry(bench).state == "complete")
    assert sorted(bench.queue()) == sorted(raws), "each job once"
    done = entry(bench)
    assert done.done + done.failed == count
    assert done.failed <= 200, "a batch that was not noted down is not found again"


def test_scheduled_jobs_that_match_are_revoked_and_do_not_run(worker, shop, bench, browse, ledger):
    worker(concurrency=1)
    sent = [shop.note.apply_async((f"n{n}",), countdown=3600) for n in range(130)]
    shop.add.apply_async((1, 2), countdown=3600)
    eventually(lambda: sum(bench.parked.sizes(bench.parked.lists()).values()) == 131)
    browser = browse(read_only=False)
    where = "/jobs?state=parked&task=note"
    title, button, ids = ask(browser, where, "revoke all")
    assert title == "Revoke 130 jobs (state scheduled, task note)?"
    assert {*ids} == {result.id for result in sent}
    page = begin(browser, where, button, ids)
    eventually(lambda: entry(bench).state == "complete")
    assert "Told 1 worker to revoke 130 of 130 jobs." in browser.get(page).text
    [revoked] = shop.note.app.control.inspect(timeout=5).revoked().values()
    assert {*revoked} == {*ids}, "and no other job"


def test_waiting_jobs_of_a_queue_are_revoked_and_do_not_run(worker, shop, bench, browse, ledger):
    worker(concurrency=1).wait_ready()
    browser = browse(read_only=False)
    bench.paused.pause("celery", "ann")
    sent = [shop.note.delay(f"n{n}") for n in range(120)]
    eventually(lambda: bench.client.llen("celery") == 120, message="a read may have moved one")
    where = "/queues?name=celery"
    chosen = [result.id for result in sent[:2]]
    assert f'value="{chosen[0]}"' in browser.get(where).text
    asked = post(browser, where, "revoke", chosen).text
    assert "Revoke 2 jobs?" in asked
    assert "Waiting jobs stay on the queue until a worker claims them" in asked
    assert "Told 1 worker to revoke 2 of 2 jobs." in post(browser, where, "revoke now", chosen).text
    title, button, ids = ask(browser, where, "revoke all")
    assert title == "Revoke 120 jobs (waiting on queue celery)?"
    begin(browser, where, button, ids)
    eventually(lambda: entry(bench).state == "complete")
    shop.note.delay("control")
    bench.paused.resume("celery")
    eventually(lambda: "control" in ledger.starts(), 60)
    assert [*ledger.starts()] == ["control"], "the others were discarded"


def test_a_revoke_of_many_that_no_worker_hears_is_continued_when_one_does(
    worker, shop, bench, browse
):
    browser = browse(read_only=False)
    ids = [f"id-{number}" for number in range(120)]
    page = begin(browser, "/jobs?state=reserved", "revoke now", ids)
    eventually(lambda: entry(bench).state == "interrupted")
    shown = browser.get(page).text
    assert "no worker answered" in shown.lower()
    assert "Left: 120." in shown
    worker(concurrency=1).wait_ready()
    post(browser, page, "continue")
    eventually(lambda: entry(bench).state == "complete")
    [revoked] = shop.note.app.control.inspect(timeout=5).revoked().values()
    assert {*revoked} == {*ids}


def test_a_question_has_as_many_jobs_as_a_form_can_name(bench, browse):
    owner = bench.owner(lists=["mail"])
    ids = [f"{number:04}" + "\u00fc" * 300 for number in range(700)]
    bench.push("mail", *(payload(id) for id in ids))
    browser = browse(read_only=False)
    title, button, named = ask(browser, "/queues?name=mail", "revoke all")
    assert owner
    assert 400 < len(named) < 700, "each takes 1.8 kB there"
    assert title.startswith(f"Revoke {len(named)} jobs")
    page = post(browser, "/queues?name=mail", "revoke all").text
    assert "There are more: these are the first" in page
    assert post(browser, "/queues?name=mail", button, named).status_code == 200, "the form is read"


def test_a_job_without_a_task_id_cannot_be_selected(bench, browse):
    bench.owner(lists=["mail"])
    message = json.loads(payload("x"))
    del message["headers"]["id"]
    message["properties"]["correlation_id"] = ""
    bench.push("mail", json.dumps(message).encode(), payload("named"))
    browser = browse(read_only=False)
    page = browser.get("/queues?name=mail").text
    assert page.count('name="id"') == 1
    assert ask(browser, "/queues?name=mail", "revoke all")[2] == ["named"]


def test_a_closed_browser_ends_nothing(bench, browse):
    kill_many(bench, 300)
    browser = browse(read_only=False)
    _, button, ids = ask(browser, "/dead", "retry all")
    begin(browser, "/dead", button, ids)
    browser.close()
    eventually(lambda: bench.client.llen("mail") == 300)
