"""Each link of the page leads somewhere, and each finding to its cause and to the runbook."""

from __future__ import annotations

import re
import shlex
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

from celery_superfetch.console.links import DOCS_URL, RUNBOOK_URL
from celery_superfetch.console.web import create_app
from celery_superfetch.store.minutes import SERIES_MAX
from celery_superfetch.worker.run_counts import RunCounts
from support.forms import HERE, browser_at
from support.house import HERE as ROOT
from support.troubled import make_troubled
from support.waiting import eventually

RUNBOOK = (ROOT / "docs" / "operate" / "runbook.md").read_text()
LABELS = {*re.findall(r"^\(([\w-]+)\)=$", RUNBOOK, re.MULTILINE)}


class Anchors(HTMLParser):
    """Links of a page, and the ids in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.ids = set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.ids.add(found.get("id") or "")
        if tag == "a":
            self.links.add(found["href"] or "")


def test_every_link_of_the_page_leads_to_a_view_and_of_the_runbook_to_a_section(app, bench, db):
    views = make_troubled(bench, db)
    browser = browser_at(create_app(app, read_only=False))
    waiting = [f"{HERE}/"] + [f"{HERE}/{path}" for path in views.values()]
    # Not linked, and refused: what is not there.
    refused = {f"{HERE}/{views[name]}" for name in ("no job", "no worker", "no page")}
    answers, fragments = dict[str, Anchors](), set[tuple[str, str]]()
    sections = set[str]()
    while waiting:
        url = waiting.pop()
        if url in answers:
            continue
        answer = browser.get(url)
        assert answer.status_code == (404 if url in refused else 200), url
        answers[url] = Anchors(answer.text)
        for link in answers[url].links:
            target, fragment = urldefrag(urljoin(url, link))
            if not target.startswith(HERE):
                assert target == RUNBOOK_URL, (url, link)
                sections.add(fragment)
                continue
            waiting.append(target)
            if fragment:
                fragments.add((target, fragment))
    assert len(answers) > 40
    assert all(fragment in answers[target].ids for target, fragment in fragments)
    assert "deaths" in {fragment for _, fragment in fragments}, "the world has a death"
    assert len(sections) > 8
    assert sections <= LABELS


def test_a_finding_leads_to_the_queue_worker_or_job_that_it_names(app, bench, db, cli):
    make_troubled(bench, db)
    found = cli("status", "--json").json()["findings"]
    rows = {row["code"]: row for row in found}
    assert all(row["page"] for row in found)
    assert all(row["runbook"] == f"{RUNBOOK_URL}#{row['code']}" for row in found)
    assert rows["no-consumer"]["page"] == "queues?name=bulk%20mail%20%26%20more"
    assert rows["no-consumer"]["command"] == "queue show 'bulk mail & more'"
    assert rows["stopping-owner"]["page"].startswith("workers/")
    assert rows["long-running-job"]["page"] == "jobs?state=running&longer=4h&task=shop.note"
    assert rows["job-killed"]["page"].startswith("dead/")
    assert rows["beat-silent"]["page"] == "recurring"
    text = cli("status").out
    overview = browser_at(create_app(app)).get("/?all").text
    for row in found:
        if row["command"]:
            assert f"{row['command']}`" in text
            cli(*shlex.split(row["command"]))
        assert f"\n  {row['runbook']}\n" in text
        assert f'href="{row["runbook"]}"' in overview, row["code"]
    examined = cli("doctor", code=1).out
    assert f"See `queue show 'bulk mail & more'`\n  {RUNBOOK_URL}#no-consumer\n" in examined
    checked = cli("check", "--json", code=2).json()["findings"]
    assert [row["runbook"] for row in checked] == [row["runbook"] for row in found]


def test_the_charts_say_when_a_new_queue_gets_no_series(bench, cli):
    """The limit is the one of the script: the queue that comes next has none."""

    def count(queue: str) -> None:
        counts = RunCounts()
        counts.count_run(queue, "shop.note", None, 0.1)
        counts.count(bench.database)

    def codes() -> set[str]:
        return {row["code"] for row in cli("status", "--json").json()["findings"]}

    count("first")
    size = bench.client.hlen("superfetch:minutes")
    rows = {f"1\tsucceeded\tq{n}": "1 ,1" for n in range(2 * SERIES_MAX - size - 2)}
    bench.client.hset("superfetch:minutes", mapping=rows)
    assert "chart-series" not in codes()
    count("last")
    assert "chart-series" in codes()
    count("beyond")
    known = bench.client.hkeys("superfetch:minutes")
    assert b"1\tsucceeded\tlast" in known
    assert b"1\tsucceeded\tbeyond" not in known


def test_all_links_lead_to_the_documentation_of_the_package():
    text = (ROOT / "setup.cfg").read_text()
    [documented] = re.findall(r"Documentation = (\S+)", text)
    assert documented == DOCS_URL


def test_a_page_without_a_server_leads_to_the_runbook(make_app, fresh_server):
    server = fresh_server()
    browser = browser_at(create_app(make_app(url=server.url())))
    assert browser.get("/").status_code == 200
    server.stop()
    for path in ("/", "/queues", "/server"):
        eventually(lambda path=path: browser.get(path).status_code == 503)
        answer = browser.get(path)
        assert f'href="{RUNBOOK_URL}#unreachable"' in answer.text, path
