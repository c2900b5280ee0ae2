"""`celery superfetch server`: the figures of a real server, with their findings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_superfetch.console.links import FIGURE_BY_CODE
from celery_superfetch.console.permissions import REQUIRED
from celery_superfetch.console.server import figures
from celery_superfetch.store import memory_use
from support.servers.server import Server
from support.workers.bench import Bench, elsewhere, payload
from support.workers.cli import Result

Cli = Callable[..., Result]


@pytest.fixture
def shown(cli: Cli, fresh_server: Callable[..., Server]) -> Callable[..., Any]:
    """`shown(server)`: the document of a server, and its figures as text."""

    def show(server: Server, url: str = "") -> tuple[dict[str, Any], dict[str, str]]:
        document = cli("server", "--json", url=url or server.url()).json()
        return document, {figure.name: figure.text for figure in figures(document)}

    return show


def codes(document: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in document["findings"]]


def test_a_server_in_good_order(shown, cli, fresh_server):
    server = fresh_server(appendonly=True, save="3600 1", maxmemory="200mb", maxclients=500)
    document, texts = shown(server)
    assert codes(document) == []
    assert texts["memory"].split(" of ")[1].startswith("200 MiB")
    assert texts["policy"] == "noeviction: it refuses writes"
    assert texts["persistence"] == "on"
    assert texts["snapshot"].startswith("on (3600 1), the last one ")
    assert texts["role"] == "primary"
    assert texts["evicted"] == "0"
    assert texts["connections"].endswith(" of 500")
    assert texts["commands"] == "none"
    assert document["server"]["last_save_age_s"] >= 0
    out = cli("server", url=server.url()).out
    assert "Append-only file" in out


def test_each_fault_has_its_finding_and_its_figure(shown, cli, fresh_server):
    server = fresh_server(maxmemory="4mb", maxmemory_policy="allkeys-lru", maxclients=10)
    client = server.client()
    for number in range(3000):
        client.set(f"filler:{number}", "x" * 2000)
    others = [redis.Redis(port=server.port) for _ in range(8)]
    try:
        for other in others[:6]:
            other.ping()
        document, texts = shown(server)
        found = codes(document)
        assert {"eviction", "evicted", "memory", "no-persistence", "connections"} <= {*found}
        assert {FIGURE_BY_CODE[code] for code in found} <= {*texts}
        assert int(texts["evicted"]) > 0
        out = cli("server", url=server.url()).out
        assert "Critical [eviction]" in out
        assert "  Fix: " in out
    finally:
        for other in others:
            other.close()


def test_what_fills_the_memory_is_named_with_a_hint(shown, cli, fresh_server):
    server = fresh_server(maxmemory="40mb")
    bench = Bench(server.client())
    bench.owner(lists=["mail", "slow"])
    bench.push("slow", payload("one", "slow"))
    bench.push("mail", *(payload(n, pad="x" * 10_000) for n in range(500)))
    bench.killed(payload("dead", pad="x" * 200_000))
    for number in range(300):
        bench.client.set(f"celery-task-meta-{number}", "x" * 30_000, ex=3600)
    document, _ = shown(server)
    parts = {part["part"]: part for part in document["memory"]["parts"]}
    assert [part["part"] for part in document["memory"]["parts"]][:2] == ["other", "waiting"]
    assert 5e6 < parts["waiting"]["bytes"] < 7e6
    assert parts["waiting"]["largest"] == "mail"
    assert 2e5 < parts["dead set"]["bytes"] < 1e6
    assert 9e6 < parts["other"]["bytes"] < 12e6, "results are known as a sum alone"
    assert re.search(r"30\d expire", parts["other"]["hint"]), "with some of this package"
    assert "start workers with -Q mail" in parts["waiting"]["hint"]
    out = cli("server", url=server.url()).out
    assert "Waiting jobs" in out
    assert "mail: " in out
    assert "shorten result_expires" in out


def test_the_parts_of_the_memory_are_measured_in_bounded_time(shown, fresh_server):
    server = fresh_server()
    bench = Bench(server.client())
    bench.owner(lists=[f"q{number}" for number in range(1000)])
    bench.push("q7", *(payload(n, pad="x" * 500) for n in range(5_000)))
    bench.client.config_resetstat()
    document, _ = shown(server)
    parts = {part["part"]: part for part in document["memory"]["parts"]}
    assert (parts["waiting"]["measured_keys"], parts["waiting"]["largest"]) == (200, "q7")
    stats = bench.client.info("commandstats")["cmdstat_memory|usage"]
    assert stats["calls"] <= 4 * 200
    assert stats["usec"] < 100_000


def test_a_server_that_refuses_the_sizes_says_so(shown, cli, fresh_server):
    server = fresh_server()
    url = url_without(server, "-memory|usage")
    document, _ = shown(server, url)
    assert document["memory"]["parts"] == []
    assert "memory|usage" in document["commands"]["optional"]
    assert "What fills the memory is unknown" in cli("server", url=url).out


def test_keys_whose_size_is_refused_are_of_unknown_size(shown, cli, fresh_server):
    """They counted as empty. The user may measure this package's keys, and no queue."""
    server = fresh_server()
    bench = Bench(server.client())
    bench.owner(lists=["mail"])
    bench.push("mail", *(payload(n, pad="x" * 10_000) for n in range(50)))
    bench.killed(payload("dead"))
    url = url_without(server, "-memory|usage")
    own_keys = "(+memory|usage ~superfetch:*)"
    server.client().execute_command("ACL", "SETUSER", "careful", own_keys)
    document, _ = shown(server, url)
    parts = {part["part"]: part for part in document["memory"]["parts"]}
    waiting, dead = parts["waiting"], parts["dead set"]
    assert (waiting["bytes"], waiting["share"], waiting["measured_keys"]) == (None, None, 0)
    assert dead["bytes"] > 0
    assert dead["measured_keys"] == dead["keys"]
    out = cli("server", url=url).out
    assert re.search(r"Waiting jobs +unknown", out)
    assert "Waiting jobs: the server refuses MEMORY USAGE of these keys" in out
    all_known, _ = shown(server)
    [part] = [part for part in all_known["memory"]["parts"] if part["part"] == "waiting"]
    assert part["bytes"] > 500_000, "the control"


def test_the_keys_that_are_measured_are_those_with_the_most_jobs_of_their_kind(
    shown, fresh_server, monkeypatch
):
    monkeypatch.setattr(memory_use, "KEYS_MEASURED", 2)
    server = fresh_server()
    bench = Bench(server.client())
    queues = [f"q{number}" for number in range(5)]
    bench.owner(elsewhere("a"), lists=queues)
    for number, queue in enumerate(queues):
        bench.push(queue, *(payload(n) for n in range(9 - number)))
    raw = payload("later", pad="x" * 5_000)
    bench.client.zadd(bench.keys.parked_of("q4"), {b'"later" nonce\n' + raw: 5e12})
    bench.client.zadd(bench.keys.parked, {"q4": 5e12})
    bench.client.lpush(bench.keys.probation("q3"), raw)
    bench.client.sadd(bench.keys.on_probation, "q3")
    owners = [bench.owner(elsewhere(f"web-{number}"), lists=["q0"]) for number in range(4)]
    bench.give(owners[-1], "held", [payload(n) for n in range(20)])
    document, _ = shown(server)
    largest = {part["part"]: part["largest"] for part in document["memory"]["parts"]}
    assert (largest["waiting"], largest["scheduled"], largest["probation"]) == ("q0", "q4", "q3")
    assert largest["in flight"] == owners[-1].owner


def test_a_replica_and_its_lag(shown, fresh_server):
    primary = fresh_server()
    replica = fresh_server(replicaof=["127.0.0.1", str(primary.port)])
    from support.waiting import eventually

    eventually(lambda: shown(primary)[0]["server"]["replica_rows"])
    document, texts = shown(primary)
    [row] = document["server"]["replica_rows"]
    assert row["address"] == f"127.0.0.1:{replica.port}"
    assert row["lag_bytes"] >= 0
    assert f"127.0.0.1:{replica.port} " in texts["replicas"]


def url_without(server: Server, *commands: str) -> str:
    """The URL of a user who may use all but these commands of a server (``-info``)."""
    server.client().acl_setuser(
        "careful",
        enabled=True,
        passwords=["+secret"],
        keys=["*"],
        channels=["*"],
        categories=["+@all"],
        commands=[*commands],
    )
    return f"redis://careful:secret@127.0.0.1:{server.port}/0"


def test_refused_commands_are_named(shown, fresh_server):
    server = fresh_server()
    document, texts = shown(server, url_without(server, "-client|list", "-zadd"))
    assert document["commands"]["required"] == ["zadd"]
    assert "client|list" in document["commands"]["optional"]
    assert "needed: zadd" in texts["commands"]
    assert {"acl-required", "acl-optional"} <= {*codes(document)}
    assert any(line.startswith("zadd") for line in REQUIRED)


def test_a_server_that_may_not_be_asked_has_unknown_figures(shown, fresh_server):
    server = fresh_server()
    _, texts = shown(server, url_without(server, "-info", "-config"))
    assert texts["memory"] == texts["version"] == texts["role"] == "unknown"
    assert texts["snapshot"] == "rule unknown"
