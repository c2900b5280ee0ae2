"""`celery superfetch status` and `reap`, and what an operator gets wrong."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from support.servers.server import free_port
from support.waiting import eventually
from support.well import NOTHING_KEPT
from support.workers.cli import Result, superfetch_command
from support.workers.worker import app_module, process_env

# A worker that leaves the reaping to the command under test.
ALONE = {"reap_interval": 3600}


def owners(result: Result) -> list[dict[str, Any]]:
    return result.json()["owners"]


def test_the_page_on_status_has_each_field_of_its_document(cli, bench):
    """Programs rely on these."""
    bench.owner(lists=["celery"])
    page = (Path(__file__).parents[3] / "docs/operate/status.md").read_text()
    section = page.partition("(status-as-data)=")[2].partition("(probes)=")[0]
    top, *parts = re.split(r"^\*\*`(\w+)`\*\*", section, flags=re.MULTILINE)
    tables = zip(parts[::2], parts[1::2], strict=True)
    fields = {name: fields_of_table(text) for name, text in tables}
    document = cli("status", "--json").json()
    assert fields_of_table(top) == {*document}
    for name in ("owners", "queues", "findings"):
        assert {field for row in document[name] for field in row} <= fields[name], name
    for name in ("dead_set", "lost"):
        assert {*document[name]} == fields[name], name


def fields_of_table(text: str) -> set[str]:
    """The names in the first column of a table."""
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


# -- status and reap -----------------------------------------------------------------------------


def test_status_of_an_empty_database(cli):
    found = cli("status", "--json").json()
    assert found["owners"] == []
    assert found["tombstones"] == {"owners": 0, "in_flight": 0}
    dead = {"size": 0, "of_app": 0, "limit": 10_000, "unannounced": 0}
    dead |= {"killed_lately": 0, "newest": None, "caps": NOTHING_KEPT}
    assert found["dead_set"] == dead
    assert found["beats"] == []
    assert (found["deaths"], found["last_pass"]) == ([], None)
    assert found["unacked"] == 0
    assert [row["list"] for row in found["queues"]] == ["celery"]
    assert found["empty_lists_left_out"] == 3
    every = cli("status", "--wide", "--json").json()
    assert [row["list"] for row in every["queues"]] == [
        "celery",
        "celery\x06\x163",
        "celery\x06\x166",
        "celery\x06\x169",
    ]
    text = cli("status").out
    assert "No worker is registered" in text
    assert text.startswith("Critical: no live worker is registered: start a worker. (1 more below)")


def test_status_and_reap_from_life_to_death_to_recovery(cli, worker, shop, ledger, client):
    one = worker(options=ALONE, queues=["celery", "aside"], concurrency=2)
    shop.hold.delay("h")
    shop.hold.apply_async(("low",), priority=9)
    eventually(lambda: set(ledger.starts()) == {"h", "low"})

    (alive,) = owners(cli("status", "--json", process=True))
    assert alive["pid"] == one.pid
    assert alive["owner"].startswith(f"{alive['host']}|{one.pid}|")
    assert (alive["app"], alive["state"], alive["verdict"]) == ("shop", "running", "alive")
    assert alive["reason"] == "its process runs on this host"
    assert alive["in_flight"] == 2
    assert 0 <= alive["heartbeat_age"] < 30

    one.die()
    for number in range(3):
        shop.note.apply_async((f"n{number}",), queue="aside", priority=3)
    before = _dump(client)

    found = cli("status", "--json").json()
    (gone,) = found["owners"]
    assert (gone["owner"], gone["verdict"]) == (alive["owner"], "dead")
    assert gone["reason"] == "its process is gone"
    codes = [one["code"] for one in found["findings"] if one["level"] == "critical"]
    assert codes == ["no-worker", "no-consumer", "dead-owner"]
    assert found["findings"][1]["fix"] == "start a worker with -Q aside"
    lengths = {row["list"]: row["length"] for row in found["queues"]}
    assert lengths["aside\x06\x163"] == 3  # only the worker knows this queue
    assert lengths["celery"] == 0

    text = cli("status", process=True).out
    assert "\nCritical: queue aside: 3 jobs, no worker consumes it: start a " in text
    given = f"celery -A {app_module('shop')} superfetch reap"
    said = f"is dead (its process is gone); its 2 jobs wait to be recovered: run `{given}`"
    assert said in text
    (row,) = (line for line in text.splitlines() if line.startswith(gone["node"]))
    assert row.split()[1] == "dead"
    assert alive["owner"] not in text
    assert alive["owner"] in cli("status", "--wide").out

    dry = cli("reap", "--dry-run", "--full", "--json").json()
    assert dry["dead"] == {alive["owner"]: "its process is gone"}
    assert (dry["dry_run"], dry["recovered"], dry["errors"]) == (True, 2, 0)
    assert "2 jobs would be recovered" in cli("reap", "--dry-run").out
    assert _dump(client) == before, "status and a dry run only read"

    done = cli("reap", process=True)
    assert "1 of 1 worker dead, 2 jobs recovered" in done.out
    again = cli("reap", "--json").json()
    assert (again["dead"], again["recovered"]) == ({}, 0)

    found = cli("status", "--json").json()
    assert found["owners"] == []
    assert found["tombstones"] == {"owners": 1, "in_flight": 0}
    assert found["counters"]["owners_reaped"] == 1
    lengths = {row["list"]: row["length"] for row in found["queues"]}
    assert (lengths["celery"], lengths["celery\x06\x169"]) == (1, 1)


def test_reap_fails_when_a_job_could_not_be_given_back(cli, worker, shop, ledger, client):
    one = worker(options=ALONE)
    shop.run("h")
    one.die()
    client.set("celery", "not a list")
    assert cli("reap", "--json", code=1).json()["errors"] > 0
    (row,) = (r for r in cli("status", "--json").json()["queues"] if r["list"] == "celery")
    assert row["length"] is None
    assert "WRONGTYPE" in row["error"]
    assert "WRONGTYPE" in cli("status").out
    client.delete("celery")
    assert cli("reap", "--json").json()["recovered"] == 1


def test_the_global_prefix_is_honoured(cli, make_app, worker, ledger):
    options = {"global_keyprefix": "shop-a:", **ALONE}
    one = worker(options=options)
    eventually(lambda: owners(cli("status", "--json", options=options)))
    one.die()
    make_app(options=options).tasks["shop.note"].delay("n")
    found = cli("status", "--json", options=options).json()
    assert found["owners"][0]["verdict"] == "dead"
    assert {row["list"]: row["length"] for row in found["queues"]}["celery"] == 1
    assert owners(cli("status", "--json")) == []


# -- what an operator gets wrong -----------------------------------------------------------------


@pytest.mark.parametrize("command", [["status"], ["reap", "--json"], ["dead", "list"]])
def test_an_unreachable_broker(cli, command):
    for credentials, said in (("user:secret@", "user:**@"), (":secret@", ":**@"), ("", "")):
        url = f"redis://{credentials}127.0.0.1:{free_port()}/0"
        failed = cli(*command, url=url, code=1)
        assert failed.out == ""
        assert f"Error: the broker (redis://{said}127.0.0.1" in failed.err
        assert "secret" not in failed.err


def test_a_broker_that_accepts_and_says_nothing(cli):
    """C5. Each command ends by itself, and waits for the server once."""
    commands = [["status"], ["reap"], ["dead", "list"]]

    def ask(words: list[str]) -> Result:
        return cli(*words, process=True, url=url, code=1)

    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor() as side_by_side:
        port = silent.getsockname()[1]
        url = f"redis://127.0.0.1:{port}/0"
        failed = list(side_by_side.map(ask, commands))
        silent.setblocking(False)
        asked = [silent.accept()[0] for _ in commands]
        with pytest.raises(BlockingIOError):  # each would be another wait
            silent.accept()
    for connection in asked:
        connection.close()
    for result in failed:
        # kombu 5.7 names an empty user before the host, 5.6 does not.
        assert f"127.0.0.1:{port}/0) cannot be reached: Timeout" in result.err
        assert "check whether its process hangs" in result.err


def test_who_waits_for_a_broker_is_told_so(env):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://:secret@127.0.0.1:{silent.getsockname()[1]}/0"
        command = superfetch_command("status", "--json")
        environ = process_env(env(url=url))
        with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as asking:
            try:
                said = asking.stderr.readline()
                assert asking.poll() is None, "it is still waiting"
            finally:
                asking.kill()
    assert "has not answered for 3 s" in said
    assert "secret" not in said


def test_no_app(cli):
    # An empty configuration, wherever the tests are started from.
    failed = cli("status", process=True, app=None, code=1, environ={"CELERY_BROKER_URL": ""})
    assert "celery -A your_app superfetch" in failed.err


def test_an_app_without_install(cli):
    failed = cli("status", superfetch=False, code=1)
    assert "the module given with -A never calls celery_superfetch.install(app)" in failed.err


def test_an_app_on_another_broker(cli):
    failed = cli("dead", "list", url="amqp://nobody@127.0.0.1:1//", code=1)
    assert "does not use celery_superfetch" in failed.err
    failed = cli("status", url="amqp://", code=1)
    assert "the app's broker (amqp://guest@localhost:5672//) does not use" in failed.err
    failed = cli("status", url="carrier-pigeon://here", code=1)
    assert "carrier-pigeon" in failed.err
    failed = cli("status", url="redis://127.0.0.1:1/0?socket_timeout=3", code=1)
    assert "socket_timeout" in failed.err
    assert "move them to broker_transport_options" in failed.err


UNREAD = "the broker's URL cannot be read: percent-encode its password"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@localhost:1/0",
        "redis://:s3cr#et@localhost:1/0",
        "redis://localhost:1/0;redis://:s3cr/et@localhost:1/0",
        "redis://localhost:1/s3cr",
    ],
)
def test_a_url_that_cannot_be_read_is_said_without_any_part_of_it(cli, url):
    for command in (["status"], ["dead", "list"], ["doctor"]):
        failed = cli(*command, url=url, code=1)
        assert failed.err.startswith(f"Error: {UNREAD}")
        assert "s3cr" not in failed.err
    checked = cli("check", url=url, code=2).out
    assert UNREAD in checked
    assert "s3cr" not in checked


def test_a_mistyped_option(cli):
    conf = {"broker_transport_options": {"strike_limt": 3}}
    failed = cli("status", conf=conf, code=1)
    assert "did you mean 'strike_limit'" in failed.err


def test_help_needs_no_broker(cli):
    for args in (["--help"], ["dead", "--help"], ["dead", "retry", "--help"]):
        assert "Usage:" in cli(*args, url=f"redis://127.0.0.1:{free_port()}/0").out
    assert "Usage:" in cli("dead", "retry", "--help", process=True, app=None).out
    usage = cli("dead", "retry", code=2)
    assert "no jobs selected" in usage.err


def test_celery_does_not_pay_for_the_plugin():
    """`celery --help` loads this module: nothing of ours beside it, and no console."""
    code = (
        "import sys, celery.bin.celery, celery_superfetch.cli;"
        "new = {m for m in sys.modules if m.startswith('celery_superfetch.')};"
        "print(sorted(m.removeprefix('celery_superfetch.') for m in new))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    commands = ["dead", "progress", "queue", "session", "status", "stock"]
    assert done.stdout.strip() == str(["cli", *(f"cli.{name}" for name in commands)])


def _dump(client: redis.Redis) -> dict[bytes, Any]:
    """Every key and its content, but for Celery's own."""
    return {
        key: client.dump(key)
        for key in client.scan_iter()
        if not key.startswith((b"_kombu", b"unacked"))
    }
