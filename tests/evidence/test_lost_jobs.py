"""The server loses jobs that a worker has reserved: the worker names each, and goes on under its
own name where a part of its keys is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.driver import LOST_JOBS_LOGGED_MAX
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.server import Server
from support.waiting import always, eventually

QUICK = {"heartbeat_interval": 1, "owner_ttl": 3, "reap_interval": 1}
IS_LOST = re.compile(r"WARNING.*Job shop\.note\[(\S+)\] is lost \(queue=celery, owner=(\S+)\)")


class Bench:
    """A server of its own, and a worker there with one slot: one job runs, others are reserved."""

    def __init__(self, server: Server, app: Any, ledger: Ledger, worker: Any, count: int) -> None:
        self.server, self.note = server, app.tasks["shop.note"]
        self.db = Database(redis.Redis.from_url(server.url()))
        app.tasks["shop.hold"].delay("running")
        self.ids = [self.note.delay(f"n{number}").id for number in range(count)]
        self.worker = worker()
        eventually(lambda: "running" in ledger.starts())
        eventually(lambda: sum(map(len, self.db.held().values())) == count + 1)
        self.owner = self.db.owner_of("running")

    def lost(self) -> list[str]:
        """Task ids that the worker has named as lost, all under its first name."""
        found = IS_LOST.findall(self.worker.log())
        assert {owner for _, owner in found} <= {self.owner}
        return [id for id, _ in found]

    def stat(self, name: str) -> int:
        return int(self.db.client.hget("superfetch:stats", name) or 0)


@pytest.fixture
def make(fresh_server: Any, make_app: Any, worker: Any, ledger: Ledger) -> Callable[..., Bench]:
    def make_bench(pool: str = "prefork", count: int = 3, without: str = "", ttl: int = 3) -> Bench:
        server = fresh_server()
        settings = {
            "url": server.url(),
            "options": {**QUICK, "owner_ttl": ttl},
            "pool": pool,
            "concurrency": 1,
            "args": ["--prefetch-multiplier=64"],
            "env": {"WITHOUT": without},
        }
        app = make_app(url=server.url(), superfetch=False)
        return Bench(server, app, ledger, lambda: worker(**settings), count)

    return make_bench


@pytest.fixture
def codes(cli: Any) -> Callable[[Bench], dict[str, str]]:
    """The findings of `status`: code -> text."""

    def findings(bench: Bench) -> dict[str, str]:
        found = cli("status", "--json", url=bench.server.url()).json()["findings"]
        return {finding["code"]: finding["text"] for finding in found}

    return findings


def flush(on: Bench) -> None:
    on.db.client.flushdb()


def restart_empty(on: Bench) -> None:
    on.server.kill()
    on.server.start()


def evict(on: Bench) -> None:
    """Every key goes: the server is far over its limit for a moment."""
    client = on.db.client
    client.config_set("maxmemory-policy", "allkeys-random")
    client.config_set("maxmemory", 1)
    eventually(lambda: not client.dbsize())
    client.config_set("maxmemory", 0)
    client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("lose", "pool", "without"),
    [
        (flush, "prefork", ""),
        (flush, "threads", ""),
        (restart_empty, "prefork", ""),
        (evict, "solo", ""),
        (flush, "prefork", "lost_jobs"),
    ],
)
def test_each_job_that_the_server_lost_before_it_ran_is_named(
    make, ledger, cli, codes, lose, pool, without
):
    bench = make(pool, without=without)
    lose(bench)
    eventually(lambda: {*bench.db.owners()} - {bench.owner}, 20, message="it has a new name")
    assert "silent-owner" not in codes(bench)
    ledger.release()
    bench.note.delay("later")
    eventually(lambda: "later" in ledger.finishes(), 20, message="it works on")
    assert ledger.runs() == {"running": 1, "later": 1}
    if without:
        always(
            lambda: not bench.lost(), during=2, message="three jobs are gone, and no line says so"
        )
        return
    eventually(lambda: {*bench.lost()} == {*bench.ids}, message="all three are named")
    assert len(bench.lost()) == 3, "each once"
    eventually(lambda: bench.stat("lost") == 3)
    assert "3 jobs" in codes(bench)["lost-jobs"]
    assert "data-lost" in codes(bench)
    metrics = cli("metrics", "--once", url=bench.server.url()).out
    assert 'superfetch_jobs_lost_total{queue="celery",task="shop.note"} 3.0' in metrics
    assert "silent-owner" not in codes(bench)


@pytest.mark.parametrize("without", ["", "data_loss"])
def test_a_server_that_lost_only_what_waited_is_no_server_that_is_well(make, codes, without):
    bench = make(count=0, without=without)
    for number in range(5):
        bench.db.client.lpush("aside", f"waits-{number}")
    flush(bench)
    eventually(lambda: {*bench.db.owners()} - {bench.owner}, 20, message="it has a new name")
    if without:
        always(lambda: "data-lost" not in codes(bench), during=2, message="five jobs are gone")
    else:
        eventually(lambda: "data-lost" in codes(bench))


def test_a_worker_that_stops_names_what_is_gone_from_its_private_list(make, ledger):
    """It would have said that the jobs are back on their queues."""
    count = LOST_JOBS_LOGGED_MAX + 10
    bench = make(count=count)
    bench.db.client.delete(f"superfetch:private:{bench.owner}")
    bench.worker.term()
    eventually(lambda: bench.stat("lost") == count)
    ledger.release()
    assert bench.worker.wait_exit() == 0
    assert {*bench.lost()} < {*bench.ids}
    assert len(bench.lost()) == LOST_JOBS_LOGGED_MAX
    assert "10 more jobs are lost in the same way (shop.note: 10)" in bench.worker.log()
    assert bench.worker.log().count("Lost ownership of job shop.hold") == 1, "it ran, and is named"
    assert ledger.runs() == {"running": 1}


@pytest.mark.parametrize(
    ("pool", "key", "without"),
    [
        ("prefork", "owner:{}", ""),
        ("solo", "owner:{}", ""),
        ("threads", "owners", ""),
        ("threads", "host:*", ""),
        ("prefork", "owner:{}", "known_names"),
    ],
)
def test_a_worker_that_lost_a_part_of_its_keys_goes_on_under_its_name(
    make, ledger, codes, pool, key, without
):
    """Under a new one its old row would be that of a frozen worker, which has this one's pid, and
    the job that runs would get a strike and run twice."""
    bench = make(pool, without=without, ttl=30 if without else 3)
    [name] = bench.db.keys(f"superfetch:{key.format(bench.owner)}")
    bench.db.client.delete(name)
    if without:
        eventually(lambda: "former-owner" in codes(bench), 20, message="its old row is silent")
        assert len(bench.db.owners()) == 2
        return
    eventually(lambda: bench.db.client.exists(name), message="it is there again")
    bench.db.wait_heard(bench.db.heard_of(bench.db.owners()))
    assert bench.db.owners() == [bench.owner]
    assert bench.db.fact(bench.owner, "state") == "running"
    assert not {"silent-owner", "former-owner"} & codes(bench).keys()
    ledger.release()
    names = {"running", "n0", "n1", "n2"}
    eventually(lambda: names <= ledger.finishes().keys())
    assert ledger.runs() == dict.fromkeys(names, 1)
    assert not bench.lost()
    assert bench.stat("recovered") == bench.stat("ownership_lost") == 0
