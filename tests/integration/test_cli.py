"""`celery superfetch ...` as an operator runs it: real commands, workers and kills."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from harness.server import free_port
from harness.waiting import eventually
from harness.worker import process_env

# A worker that leaves the reaping to the command under test.
ALONE = {"reap_interval": 3600}
ONE_STRIKE = {"strike_limit": 1}
ISO = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")


@dataclass
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """stdout is one document and nothing else."""
        return json.loads(self.out)


@pytest.fixture
def cli(env: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., Result]:
    """`cli("dead", "list", code=0, options={...})`: run it and check its exit code."""

    def run(
        *args: str,
        code: int = 0,
        app: str | None = "apps.shop",
        answer: str = "",
        environ: dict[str, str] | None = None,
        **settings: Any,
    ) -> Result:
        chosen = ["-A", app] if app else []
        done = subprocess.run(
            [sys.executable, "-m", "celery", *chosen, "superfetch", *args],
            env={**process_env(env(**settings)), **(environ or {})},
            cwd=tmp_path,
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def kill(shop, cli) -> Callable[..., dict[str, Any]]:
    """`kill("a")`: a job that ends its pool child; its row in the dead set, caller told."""

    def send(job: str) -> dict[str, Any]:
        sent = shop.kill_child.delay(job)

        def found() -> dict[str, Any] | None:
            jobs = cli("dead", "list", "--json", options=ONE_STRIKE).json()["jobs"]
            return next((row for row in jobs if row["task_id"] == sent.id), None)

        with pytest.raises(Exception, match="was killed"):
            sent.get(timeout=30)
        return eventually(found, every=0.2)

    return send


def owners(result: Result) -> list[dict[str, Any]]:
    return result.json()["owners"]


# -- status and reap -----------------------------------------------------------------------------


def test_status_of_an_empty_database(cli):
    found = cli("status", "--json").json()
    assert found["owners"] == []
    assert found["tombstones"] == {"owners": 0, "in_flight": 0}
    assert found["dead_set"] == {"size": 0, "unannounced": 0}
    assert [row["list"] for row in found["queues"]] == [
        "celery",
        "celery\x06\x163",
        "celery\x06\x166",
        "celery\x06\x169",
    ]
    assert "No owners" in cli("status").out


def test_status_and_reap_from_life_to_death_to_recovery(cli, worker, shop, ledger, client):
    one = worker(options=ALONE, queues=["celery", "aside"], concurrency=2)
    shop.hold.delay("h")
    shop.hold.apply_async(("low",), priority=9)
    eventually(lambda: set(ledger.starts()) == {"h", "low"})

    (alive,) = owners(cli("status", "--json"))
    assert alive["pid"] == one.pid
    assert alive["owner"].startswith(f"{alive['host']}|{one.pid}|")
    assert (alive["app"], alive["state"], alive["verdict"]) == ("shop", "running", "alive")
    assert alive["reason"] == "its process runs on this host"
    assert alive["in_flight"] == 2
    assert 0 <= alive["heartbeat_age"] < 30

    one.kill9_all()
    one.wait_gone()
    for number in range(3):
        shop.note.apply_async((f"n{number}",), queue="aside", priority=3)
    before = _dump(client)

    found = cli("status", "--json").json()
    (gone,) = found["owners"]
    assert (gone["owner"], gone["verdict"]) == (alive["owner"], "dead")
    assert gone["reason"] == "its process is gone"
    lengths = {row["list"]: row["length"] for row in found["queues"]}
    assert lengths["aside\x06\x163"] == 3  # only the worker knows this queue
    assert lengths["celery"] == 0

    text = cli("status").out
    assert alive["owner"] in text
    assert "its process is gone" in text
    assert "aside" in text

    dry = cli("reap", "--dry-run", "--full", "--json").json()
    assert dry["dead"] == {alive["owner"]: "its process is gone"}
    assert (dry["dry_run"], dry["recovered"], dry["errors"]) == (True, 2, 0)
    assert "would recover 2 jobs" in cli("reap", "--dry-run").out
    assert _dump(client) == before, "status and a dry run only read"

    done = cli("reap")
    assert "1 of 1 owners dead, recovered 2 jobs" in done.out
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
    shop.hold.delay("h")
    eventually(lambda: ledger.starts().get("h"))
    one.kill9_all()
    one.wait_gone()
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
    one.kill9_all()
    one.wait_gone()
    make_app(options=options).tasks["shop.note"].delay("n")
    found = cli("status", "--json", options=options).json()
    assert found["owners"][0]["verdict"] == "dead"
    assert {row["list"]: row["length"] for row in found["queues"]}["celery"] == 1
    assert owners(cli("status", "--json")) == []


# -- the dead set --------------------------------------------------------------------------------


def test_list_and_show(cli, worker, kill):
    worker(options=ONE_STRIKE)
    first, second = kill("a"), kill("b")

    listed = cli("dead", "list", "--json").json()
    assert listed["size"] == 2
    assert [row["id"] for row in listed["jobs"]] == [second["id"], first["id"]]
    page = cli("dead", "list", "--first", "1", "--count", "1", "--json").json()
    assert [row["id"] for row in page["jobs"]] == [first["id"]]
    text = cli("dead", "list").out
    for row in (first, second):
        assert row["id"] in text
        assert row["task_id"] in text
        assert row["reason"] in text
    assert "1 to 2 of 2 jobs" in text
    assert "only 2 jobs" in cli("dead", "list", "--first", "5").out

    for id in (first["id"], first["id"][:10], first["task_id"]):
        shown = cli("dead", "show", id, "--json").json()
        assert shown == first
    assert shown["task"] == "shop.kill_child"
    assert shown["queue"] == "celery"
    assert (shown["strikes"], shown["recoveries"]) == (1, 1)
    assert ISO.match(shown["time_of_death"])
    assert json.loads(shown["payload"])["headers"]["id"] == first["task_id"]

    text = cli("dead", "show", first["id"][:10]).out
    for value in (first["task"], first["task_id"], first["reason"], first["time_of_death"]):
        assert value in text
    assert first["payload"] in text, "not cut, not wrapped"
    assert first["history"][-1]["owner"] in text


def test_payloads_that_are_no_text(cli, worker, client):
    worker(options=ONE_STRIKE)
    client.rpush("celery", b"\xff\x1b[31mnot text", b"\x1b[31mnot a message")
    jobs = eventually(
        lambda: rows if len(rows := cli("dead", "list", "--json").json()["jobs"]) == 2 else None,
        every=0.2,
    )
    by_encoding = {row["encoding"]: row for row in jobs}
    binary, text = by_encoding["base64"], by_encoding["utf-8"]
    assert base64.b64decode(binary["payload"]) == b"\xff\x1b[31mnot text"
    assert binary["payload"] in cli("dead", "show", binary["id"]).out
    shown = cli("dead", "show", text["id"]).out
    assert "\\x1b[31mnot a message" in shown
    assert "\x1b" not in shown, "a payload must not speak to the terminal"
    assert "(unparseable)" in cli("dead", "list").out


def test_a_retried_poison_job_runs_again(cli, worker, shop, kill, ledger):
    one = worker(options=ONE_STRIKE)
    job = kill("a")
    result = shop.kill_child.AsyncResult(job["task_id"])
    assert result.state == "FAILURE"
    one.term()
    one.wait_exit()

    done = cli("dead", "retry", job["task_id"], "--json")
    row = {"id": job["id"], "task": "shop.kill_child", "task_id": job["task_id"]}
    assert done.json() == {"retried": [{**row, "queue": "celery"}], "errors": []}
    assert done.err == ""
    assert shop.kill_child.AsyncResult(job["task_id"]).state == "PENDING"
    found = cli("status", "--json").json()
    assert found["dead_set"] == {"size": 0, "unannounced": 0}
    assert found["counters"]["retried"] == 1
    assert "empty" in cli("dead", "list").out

    worker(options=ONE_STRIKE)
    eventually(lambda: len(ledger.starts()["a"]) == 2)
    eventually(lambda: cli("dead", "list", "--json").json()["size"] == 1, every=0.2)


def test_retry_on_another_queue(cli, worker, kill, client):
    worker(options=ONE_STRIKE)
    job = kill("a")
    client.set("taken", "by something else")
    failed = cli("dead", "retry", job["id"], "--queue", "taken", code=1)
    assert "'taken' is no queue, it holds a string" in failed.err
    assert cli("dead", "show", job["id"], "--json").json() == job

    done = cli("dead", "retry", job["id"][:12], "--queue", "aside")
    assert f"Put back on aside: shop.kill_child[{job['task_id']}]" in done.out
    assert "no queue 'aside'" in done.err
    assert client.lrange("aside", 0, -1) == [job["payload"].encode()]


def test_a_broken_result_backend_does_not_hold_up_a_retry(cli, worker, kill):
    worker(options=ONE_STRIKE)
    first, second = kill("a"), kill("b")
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    done = cli("dead", "retry", first["id"], "--queue", "aside", "--json", result_url=nowhere)
    assert "stays FAILURE" in done.err
    assert [row["id"] for row in done.json()["retried"]] == [first["id"]]
    done = cli("dead", "retry", second["id"], "--queue", "aside", "--json", result_url="")
    assert "stays FAILURE" in done.err
    assert [row["id"] for row in done.json()["retried"]] == [second["id"]]


def test_an_unknown_id_does_not_hold_up_the_others(cli, worker, kill):
    worker(options=ONE_STRIKE)
    first, second, third = kill("a"), kill("b"), kill("c")
    assert "no job 'nope' in the dead set" in cli("dead", "show", "nope", code=1).err

    done = cli("dead", "delete", "nope", first["id"], code=1)
    assert "no job 'nope' in the dead set" in done.err
    assert f"Deleted {first['id']}" in done.out
    done = cli("dead", "delete", second["task_id"], "nope", "--json", code=1).json()
    assert done["deleted"] == [second["id"]]
    assert [error["id"] for error in done["errors"]] == ["nope"]
    done = cli("dead", "retry", "nope", third["id"], "--queue", "aside", "--json", code=1).json()
    assert [row["id"] for row in done["retried"]] == [third["id"]]
    assert [error["id"] for error in done["errors"]] == ["nope"]
    found = cli("status", "--json").json()
    assert found["dead_set"]["size"] == 0
    assert found["counters"]["dead_deleted"] == 2


def test_purge_asks_first(cli, worker, kill):
    worker(options=ONE_STRIKE)
    assert cli("dead", "purge").out == "Deleted 0 jobs.\n", "nothing to ask about"
    kill("a")
    refused = cli("dead", "purge", answer="n\n", code=1)
    assert "Delete all 1 jobs" in refused.err
    cli("dead", "purge", code=1)  # nobody there to answer
    assert cli("dead", "list", "--json").json()["size"] == 1
    assert cli("dead", "purge", "--json", answer="y\n").json() == {"deleted": 1}
    kill("b")
    assert cli("dead", "purge", "--yes").out == "Deleted 1 jobs.\n"
    assert cli("dead", "list", "--json").json()["size"] == 0


# -- what an operator gets wrong -----------------------------------------------------------------


@pytest.mark.parametrize("command", [["status"], ["reap", "--json"], ["dead", "list"]])
def test_an_unreachable_broker(cli, command):
    url = f"redis://user:secret@127.0.0.1:{free_port()}/0"
    failed = cli(*command, url=url, code=1)
    assert failed.out == ""
    assert "Error: the broker (redis://user:**@127.0.0.1" in failed.err
    assert "secret" not in failed.err


def test_no_app(cli, tmp_path):
    # An empty configuration, wherever the tests are started from.
    failed = cli("status", app=None, code=1, environ={"CELERY_BROKER_URL": ""})
    assert "celery -A your_app superfetch" in failed.err


def test_an_app_without_install(cli):
    failed = cli("status", superfetch=False, code=1)
    assert "call celery_superfetch.install(app)" in failed.err


def test_an_app_on_another_broker(cli):
    failed = cli("dead", "list", url="amqp://nobody@127.0.0.1:1//", code=1)
    assert "is not served by celery_superfetch" in failed.err
    failed = cli("status", url="carrier-pigeon://here", code=1)
    assert "carrier-pigeon" in failed.err


def test_a_mistyped_option(cli):
    conf = {"broker_transport_options": {"strike_limt": 3}}
    failed = cli("status", conf=conf, code=1)
    assert "did you mean 'strike_limit'" in failed.err


def test_help_needs_no_broker(cli, tmp_path):
    for args in (["--help"], ["dead", "--help"], ["dead", "retry", "--help"]):
        assert "Usage:" in cli(*args, app=None).out
    usage = cli("dead", "retry", code=2)
    assert "Missing argument 'ID...'" in usage.err


def test_celery_does_not_pay_for_the_plugin():
    """`celery --help` loads this module: nothing of ours beside it, and no rich."""
    code = (
        "import sys, celery.bin.celery, celery_superfetch.cli;"
        "new = {m for m in sys.modules if m.startswith(('celery_superfetch', 'rich'))};"
        "print(sorted(new))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.stdout.strip() == "['celery_superfetch', 'celery_superfetch.cli']"


def _dump(client: redis.Redis) -> dict[bytes, Any]:
    """Every key and its content, but for Celery's own."""
    return {
        key: client.dump(key)
        for key in client.scan_iter()
        if not key.startswith((b"_kombu", b"unacked"))
    }
