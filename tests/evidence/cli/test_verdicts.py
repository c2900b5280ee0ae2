"""One judge: `status`, `check`, `doctor`, metrics and the page say the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from celery_superfetch.console.probe import main
from celery_superfetch.console.web import create_app
from celery_superfetch.store.redis.server import MAY_DEADLOCK
from support.servers.server import Server
from support.waiting import eventually
from support.well import make_well
from support.workers.bench import Bench, payload

EXIT = {"critical": 2, "warning": 1, "note": 0}
MUCH = 50 * 1024 * 1024


def nearly_full(server: Server, bench: Bench) -> None:
    make_well(bench)
    client = server.client()
    client.setrange("ballast", MUCH, b"x")
    client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.03))


def evicting(server: Server, bench: Bench) -> None:
    make_well(bench)
    server.client().config_set("maxmemory-policy", "allkeys-lru")
    server.client().config_set("maxmemory", 10 * MUCH)


def unread(server: Server, bench: Bench) -> None:
    """Jobs that stock workers left."""
    make_well(bench)
    server.client().hset("unacked", "tag", "[]")


def killed(server: Server, bench: Bench) -> None:
    make_well(bench)
    bench.killed(payload("a"))
    bench.client.delete(bench.keys.unannounced)


FAULTS: dict[str, tuple[str, Callable[[Server, Bench], None]]] = {
    "no-worker": ("critical", lambda server, bench: None),
    "memory": ("critical", nearly_full),
    "eviction": ("critical", evicting),
    "unacked": ("warning", unread),
    "job-killed": ("note", killed),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_all_say_the_same(fault, cli, make_app, fresh_server, capsys):
    server = fresh_server(appendonly=True)
    level, befall = FAULTS[fault]
    befall(server, Bench(server.client()))
    url = server.url()

    found = cli("status", "--json", url=url).json()["findings"]
    assert (found[0]["level"], found[0]["code"]) == (level, fault)
    codes = [one["code"] for one in found]
    checked = cli("check", "--json", url=url, code=EXIT[level]).json()
    assert [one["code"] for one in checked["findings"]] == codes
    capsys.readouterr()
    assert main(["--broker", url, "--json"]) == EXIT[level]
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["findings"]] == codes
    bad = level != "note" or MAY_DEADLOCK  # it looks at this process, too
    examined = cli("doctor", "--json", url=url, code=int(bad)).json()["findings"]
    assert {*codes} <= {one["code"] for one in examined}
    counted = f'superfetch_findings{{code="{fault}",level="{level}"}} 1.0'
    assert counted in cli("metrics", "--once", url=url).out

    page = TestClient(create_app(make_app(url=url)), base_url="http://localhost").get("/").text
    [title] = re.findall("<title>(.*?) ·", page)
    first = cli("status", url=url).out.splitlines()[0]
    said = "All is well" if level == "note" else level.capitalize()
    assert (title, first.partition(":")[0]) == (said, said)


def test_a_job_that_was_just_killed_is_seen_wherever_one_looks(worker, shop, db, cli, make_app):
    """And at a full dead set the counter goes on, by which the alert goes."""
    options = {"strike_limit": 1, "dead_limit": 1, "reap_interval": 1}
    worker(concurrency=1, options=options)
    for name in ("one", "two"):
        shop.kill_child.delay(name)
    eventually(lambda: db.stat("killed") == 2, message="both are killed")
    assert len(db.dead()) == 1

    def looks() -> list[str]:
        page = TestClient(create_app(make_app()), base_url="http://localhost").get("/").text
        # The tests' server saves nothing, which is a warning.
        return [cli("status").out, cli("check", "--json", code=1).out, page]

    for look in looks():
        assert re.search(r"[Jj]ob shop\.kill_child\[[\w-]+\] was moved to the dead set", look), look
    metrics = cli("metrics", "--once").out
    [total] = re.findall(
        r'jobs_killed_total\{queue="celery",task="shop.kill_child"\} (.*)', metrics
    )
    assert float(total) == 2
    assert "superfetch_dead_set_size 1.0" in metrics


def test_a_dead_set_is_full_by_the_jobs_of_the_app_that_asks(cli, make_bench):
    """Another app in the database has a limit of its own."""
    blog, shop = make_bench(app_name="blog"), make_bench()
    blog.killed(*map(payload, range(9)))
    shop.killed(payload("a"))
    text = cli("status", options={"dead_limit": 5}).out
    assert "Dead set: 10 jobs; of this app 1 of at most 5, 10 failure notifications pending" in text
    assert "deletes the oldest" not in text
    shop.killed(*(payload(f"b{n}") for n in range(4)))
    text = cli("status", options={"dead_limit": 5}).out
    assert "the dead set holds 5 of at most 5 jobs: each further one deletes the oldest" in text
