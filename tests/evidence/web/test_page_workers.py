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
    assert "2 running, 0 reserved" in page


def test_a_worker_that_is_not_there_is_404(bench, browse):
    for owner in ("nobody", "a|1|x", "..%2fdead", "%00", quote(EVIL, safe="")):
        assert browse().get(f"/workers/{owner}").status_code == 404
    assert "is not registered" in browse().get("/workers/nobody").text


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
