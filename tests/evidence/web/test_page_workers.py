"""The page's views of workers, and the form that stops one."""

from __future__ import annotations

import json
import re
import socket
from typing import Any
from urllib.parse import quote

import pytest

from celery_superfetch.model.job import claim_number
from support.forms import EVIL, Tags, key
from support.waiting import eventually
from support.workers.bench import elsewhere, payload

MB = 2**20


def post(browser: Any, do: str, *owners: str, **more: str) -> Any:
    form = {"key": key(browser), "id": list(owners), "do": do, **more}
    return browser.post("/workers", data=form)


def test_a_list_leads_to_each_worker_and_from_there_to_its_jobs(bench, browse):
    facts = {"pool_name": "prefork", "slots": 4, "memory": 96 * MB}
    one = bench.owner(node="w1@host", lists=["mail", "slow"], **facts)
    other = bench.owner(elsewhere("far"), node="w2@far")
    long, short = bench.give(one, "mail", [payload("long"), payload("short", retries=3)])
    for job in (long, short):
        bench.run_one(job)
    at = bench.database.server_time() // 1000 - 1200
    started = json.dumps([[claim_number(long.claim_id), at]])
    bench.client.hset(bench.keys.owner_record(one.owner), "started_jobs", started)
    bench.give(other, "mail", [payload("elsewhere")])
    browser = browse()
    listed = browser.get("/workers").text
    assert "prefork, 4" in listed
    assert "96 MB" in listed
    assert f'workers/{quote(one.owner, safe="")}"' in listed
    page = browser.get(f"/workers/{quote(one.owner, safe='')}").text
    assert page.index("jobs/long") < page.index("jobs/short")
    assert "20 min" in page
    assert "elsewhere" not in page
    assert re.findall(r'queues\?name=(\w+)">', page.partition("<dt>Queues")[2]) == ["mail", "slow"]
    assert "2 of 4 slots running, 0 reserved" in page


def test_a_worker_that_is_not_there_is_404(bench, browse):
    for owner in ("nobody", "a|1|x", "..%2fdead", "%00", quote(EVIL, safe="")):
        assert browse().get(f"/workers/{owner}").status_code == 404
    assert "is not registered" in browse().get("/workers/nobody").text


def test_a_full_pool_is_marked_wherever_workers_are_listed(bench, browse, cli):
    full = bench.owner(node="w1@host", lists=["mail"], pool_name="prefork", slots=2)
    bench.owner(elsewhere("b"), node="w2@host", lists=["mail"], pool_name="prefork", slots=2)
    for job in bench.give(full, "mail", [payload("a"), payload("b")]):
        bench.run_one(job)
    browser = browse()
    for view in ("/", "/workers", "/queues?name=mail"):
        page = browser.get(view).text
        assert page.count("of 2<small>full</small></td>") == 1, view
        assert len(re.findall(r"(?:\d|</a>) of 2<", page)) == 2, view
    path = f"/workers/{quote(full.owner, safe='')}"
    assert "2 of 2 slots running (full), 0 reserved" in browser.get(path).text
    for command in (("workers",), ("queue", "show", "mail"), ("status",)):
        assert "2 of 2, full" in cli(*command).out, command
    bench.client.hset(bench.keys.owner_record(full.owner), "state", "stopping")
    out = cli("workers").out
    assert "2 of 2" in out
    assert "full" not in out, "it would start no job anyway"
    rows = cli("workers", "--json").json()["workers"]
    assert {(row["running"], row["slots"]) for row in rows} == {(2, 2), (0, 2)}


def test_the_page_of_a_dead_worker_says_how_it_ended_and_where_its_jobs_are(bench, browse):
    raws = [payload("runs"), payload("reserved")]
    lost = bench.dead_owner(raws, running=raws[:1], node="celery@web-9")
    bench.reaper().reap()
    bench.owner(node="w2@b", lists=["mail"])
    browser, path = browse(), f"workers/{quote(lost.owner, safe='')}"
    assert f'{path}"' in browser.get("/").text, "the list of deaths leads to it"
    answer = browser.get(f"/{path}")
    assert answer.status_code == 200
    assert "Dead, and not registered any more" in answer.text
    assert "(its process is gone): 2 jobs recovered." in answer.text
    assert "2 of 2 are still in Redis" in answer.text
    assert 'jobs/runs"' in answer.text
    unknown = browser.get("/workers/nobody")
    assert unknown.status_code == 404
    assert "not registered any more" in unknown.text
    assert 'jobs?state=struck"' in unknown.text


def test_nothing_that_a_record_says_is_markup(bench, browse):
    facts = {"node": EVIL, "app": EVIL, "version": EVIL, "pool_name": EVIL, "state": "hung"}
    owner = bench.owner(elsewhere(EVIL), lists=[EVIL], **facts)
    bench.give(owner, EVIL, [payload(EVIL, EVIL, task=EVIL, argsrepr=EVIL, kwargsrepr=EVIL)])
    browser = browse(read_only=False)
    well = bench.owner(elsewhere("b"), node=EVIL)
    paths = "/workers", "/workers?all", f"/workers/{quote(well.owner, safe='')}"
    pages = [browser.get(path) for path in paths]
    pages += [post(browser, "stop", well.owner), post(browser, "stop", owner.owner)]
    pages += [post(browser, "stop now", well.owner), post(browser, EVIL, well.owner)]
    for page in pages:
        tags = Tags(page.text)
        assert tags.count["script"] == 1
        assert tags.count["img"] == 0


def test_arguments_of_its_jobs_are_hidden(bench, browse):
    texts = {"argsrepr": "('S3CRET',)", "kwargsrepr": "{'apiToken': 'S3CRET'}"}
    owner = bench.owner(node="w1@host", lists=["mail"])
    bench.give(owner, "mail", [payload("x", task="shop.unknown", **texts)])
    path = f"/workers/{quote(owner.owner, safe='')}"
    assert "S3CRET" not in browse().get(path).text
    assert "S3CRET" in browse(hide=[]).get(path).text, "the control"


def test_a_worker_is_stopped_after_a_question(worker, shop, ledger, db, browse):
    one = worker(concurrency=1)
    shop.hold.delay("runs")
    eventually(lambda: ledger.starts().get("runs"))
    [owner] = db.owners()
    browser = browse(read_only=False)
    assert "Stop…" in browser.get(f"/workers/{quote(owner, safe='')}").text
    asked = post(browser, "stop", owner).text
    assert f"Stop worker {one.name}@{socket.gethostname()}?" in asked
    assert "may start it again" in asked
    assert one.alive()
    done = post(browser, "stop now", owner).text
    assert "was told to stop; its running jobs: 1" in done
    ledger.release()
    one.wait_exit()
    assert ledger.runs() == {"runs": 1}


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"state": "hung"}, "it is hung"), ({"node": ""}, "it has no node name")],
    ids=["hung", "no name"],
)
def test_a_worker_that_cannot_obey_has_no_button(bench, browse, facts, why):
    owner = bench.owner(elsewhere("a"), **{"node": "w1@host", **facts})
    browser = browse(read_only=False)
    page = browser.get(f"/workers/{quote(owner.owner, safe='')}").text
    assert "Stop…" not in page
    assert why in page
    for do in ("stop", "stop now"):
        answer = post(browser, do, owner.owner)
        assert answer.status_code == 409
        assert why in answer.text


def test_a_worker_that_does_not_answer_is_said_not_to_be_told(bench, browse):
    owner = bench.owner(elsewhere("a"), node="w1@host")
    done = post(browse(read_only=False), "stop now", owner.owner)
    assert done.status_code == 200
    assert "did not answer a ping" in done.text


def test_no_other_form_stops_a_worker(bench, browse):
    owner = bench.owner(elsewhere("a"), node="w1@host")
    path = f"/workers/{quote(owner.owner, safe='')}"
    read_only = browse()
    assert "Stop…" not in read_only.get(path).text
    assert read_only.post("/workers", data={"id": owner.owner, "do": "stop now"}).status_code == 403
    browser = browse(read_only=False)
    assert post(browser, "stop now", owner.owner, key="x").status_code == 403
    assert post(browser, "nothing", owner.owner).status_code == 400
    for owners in ((), ("nobody",), (owner.owner, "another")):
        assert post(browser, "stop now", *owners).status_code == 404
    form = {"key": key(browser), "id": owner.owner, "do": "stop now"}
    headers = {"sec-fetch-site": "cross-site"}
    assert browser.post("/workers", data=form, headers=headers).status_code == 403
    assert browse(token="correct-horse-battery").get("/workers").status_code == 401
    assert browse(token="correct-horse-battery").get(path).status_code == 401
