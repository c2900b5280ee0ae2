"""Each view of the console while another program has written to a key of this package.

One text at the place of the scheduled jobs of a queue ended `status`, `check`, `server`, the
metrics and most of the page: none of them named the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from starlette.testclient import TestClient

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.console.charts import charts_of
from celery_superfetch.console.dead_worker import death_of
from celery_superfetch.console.health import findings
from celery_superfetch.console.jobs import JobsSnapshot, Which
from celery_superfetch.console.metrics import text_of
from celery_superfetch.console.one_job import find_jobs, one_job
from celery_superfetch.console.overview import overview_of
from celery_superfetch.console.queue_view import view_of
from celery_superfetch.console.server import server_of
from celery_superfetch.console.web import create_app
from celery_superfetch.console.workers import one_worker, workers_of
from celery_superfetch.inspector import Inspector
from celery_superfetch.model.job import digest
from celery_superfetch.store.database import Structure
from celery_superfetch.store.key_types import NEEDED, TYPE_BY_NAME
from celery_superfetch.store.queues import Queues, Suspects
from celery_superfetch.store.runs import RunReport, Runs
from support.forms import browser_at
from support.workers.bench import Bench, payload

#: Keys of one queue list, of one owner and of one app.
OF_ONE = ("parked_of", "probation_of", "private", "owner_record", "dead_of", "dead_never_ran")
PAGES = ("", "jobs", "jobs?state=parked", "jobs?state=probation", "jobs?state=struck", "jobs/runs")
PAGES += ("find?text=note", "queues", "queues?name=mail", "workers", "workers/gone", "recurring")
PAGES += ("charts", "server", "audit")


@pytest.fixture
def full(bench: Bench, db: Any) -> Bench:
    """A database in which each structure has something."""
    owner = bench.owner(lists=["mail"], node="w1@host")
    _, job, parked = bench.give(owner, "mail", [payload(x) for x in ("waits", "runs", "later")])
    bench.run_one(job)
    bench.run(bench.parked.park({parked: bench.database.server_time() + 3_600_000}))
    bench.push("mail", payload("on its queue"))
    bench.land(owner, "mail", payload("landed"))
    db.suspect(payload("suspect"), "mail")
    bench.killed(payload("dead"))
    bench.dead_owner([payload("lost")], node="gone@host")
    reaper = bench.reaper()
    record_pass(reaper, reaper.reap())
    bench.paused.pause("mail", "a test")
    bench.stats.record_tick(0)
    Runs(bench.database).add(RunReport("w", 0, [(("succeeded", "mail", "shop.note"), 2)]))
    return bench


def key_of(bench: Bench, name: str) -> str:
    [owner] = bench.registry.owners()
    names = {
        "parked_of": bench.keys.parked_of("mail"),
        "probation_of": bench.keys.probation("mail"),
        "private": bench.keys.private(owner),
        "owner_record": bench.keys.owner_record(owner),
        "dead_of": bench.keys.dead_of("shop"),
        "dead_never_ran": bench.keys.dead_never_ran("shop"),
    }
    return names[name] if name in names else str(getattr(bench.keys, name))


def break_key(client: redis.Redis, key: str) -> None:
    kind = client.type(key)
    client.delete(key)
    if kind == b"string":
        client.rpush(key, "an item")
    else:
        client.set(key, "a text")


def scraped(app: Celery) -> None:
    """Read the metrics; a scrape answers an error of the server with none of them."""
    assert "superfetch_owners{" in text_of(app)


def views(bench: Bench, app: Celery) -> Iterator[Callable[[Inspector], object]]:
    """Each reading of a command or a page."""
    [owner] = bench.registry.owners()
    now = bench.database.server_time()
    yield lambda it: findings(overview_of(it))
    yield server_of
    yield workers_of
    yield lambda it: one_worker(it, owner)
    yield lambda it: death_of(it, "a|1|b", now)
    yield lambda it: view_of(it, overview_of(it), "mail")
    for state in (None, "parked", "probation", "struck"):
        yield lambda it, state=state: JobsSnapshot(it, Which(state)).first(100)  # type: ignore[misc]
    for text in ("note", "runs", digest(payload("runs")), digest(payload("later"))):
        yield lambda it, text=text: find_jobs(it, text)  # type: ignore[misc]
        yield lambda it, text=text: one_job(it, text)  # type: ignore[misc]
    yield lambda it: charts_of(it)
    yield lambda it: charts_of(it, 24, "mail")
    yield lambda _: scraped(app)


@pytest.mark.parametrize("name", [*TYPE_BY_NAME, *OF_ONE])
def test_no_key_of_another_type_ends_a_view_and_a_finding_names_it(full, make_app, cli, name):
    app, key = make_app(), key_of(full, name)
    readings = [*views(full, app)]
    break_key(full.client, key)
    inspector = Inspector(full.database, ["mail"])
    for reading in readings:
        reading(inspector)
    browser: TestClient = browser_at(create_app(app))
    answers = {page: browser.get(f"/{page}").status_code for page in PAGES}
    # Of a job that cannot be read, as of a worker that does not exist, it says so.
    assert {page: code for page, code in answers.items() if code not in (200, 404)} == {}
    assert {page for page, code in answers.items() if code == 404} <= {"jobs/runs", "workers/gone"}
    [found] = [one for one in findings(overview_of(inspector)) if one.code == "key-type"]
    assert f"{key} (a " in found.text
    is_needed = name in NEEDED or name in OF_ONE
    assert found.level == ("critical" if is_needed else "warning")
    document = cli("status", "--json").json()
    assert [row["key"] for row in document["wrong_keys"]] == [key]
    assert cli("check", code=2 if is_needed else None).out


def test_a_database_of_this_package_alone_has_no_such_key(full):
    document = overview_of(Inspector(full.database, ["mail"]))
    assert document["wrong_keys"] == []
    assert "key-type" not in {found.code for found in findings(document)}


def test_each_key_with_a_fixed_name_has_its_type(full):
    fixed = {name for name, key in vars(full.keys).items() if "superfetch:" in str(key)}
    assert fixed - {"_base", "never"} == {*TYPE_BY_NAME}
    for name in TYPE_BY_NAME:
        assert full.client.type(key_of(full, name)).decode() in (TYPE_BY_NAME[name], "none")


READS: dict[str, Callable[[Bench], object]] = {
    "parked": lambda bench: bench.parked.lists(),
    "parked_of": lambda bench: bench.parked.sizes(["mail"]),
    "on_probation": lambda bench: Suspects(bench.database).lists(),
    "probation_of": lambda bench: Queues(bench.database).lengths(["mail"]),
    "owners": lambda bench: bench.registry.owners(),
    "reaped": lambda bench: bench.registry.tombstones(),
    "dead": lambda bench: len(bench.dead_set),
    "dead_jobs": lambda bench: bench.dead_set.page(),
}


@pytest.mark.parametrize("name", READS)
def test_control_a_process_that_moves_jobs_takes_no_such_key_for_empty(full, name):
    """A rollback would end with jobs left, and a reaper would recover none."""
    break_key(full.client, key_of(full, name))
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        READS[name](full)


@pytest.mark.parametrize("name", ["dead", "dead_jobs"])
def test_a_command_on_dead_jobs_that_ends_there_names_the_key(full, cli, name):
    """It named no key. `status` does, but a person read that the broker had refused a command."""
    key = key_of(full, name)
    break_key(full.client, key)
    for command in (["list"], ["list", "--task", "*"]):
        failed = cli("dead", *command, code=1).err
        assert f"key {key}: WRONGTYPE" in failed
        assert "RENAME the key" in failed


def test_control_views_that_trust_the_type_of_a_key_end_there(full, make_app, monkeypatch):
    def raising(_: Structure, reply: Any, __: Any) -> Any:
        if isinstance(reply, Exception):
            raise reply
        return reply

    monkeypatch.setattr(Structure, "_or_empty", raising)
    readings = [*views(full, make_app())]
    broken, keys = set(), {name: key_of(full, name) for name in (*TYPE_BY_NAME, *OF_ONE)}
    for name, key in keys.items():
        before = full.client.dump(key)
        break_key(full.client, key)
        for reading in readings:
            try:
                reading(Inspector(full.database, ["mail"]))
            except (redis.ResponseError, AssertionError):
                broken.add(name)
        full.client.delete(key)
        if before:
            full.client.restore(key, 0, before)
    assert broken >= {"parked_of", "probation_of", "stats", "owners", "oldest", "beats", "runs"}
