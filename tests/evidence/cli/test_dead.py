"""`celery superfetch dead ...`: jobs that workers have killed, one by one."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from support.servers.server import free_port
from support.waiting import eventually
from support.well import NOTHING_KEPT
from support.workers.bench import payload
from support.workers.cli import superfetch_command
from support.workers.terminal import Terminal
from support.workers.worker import process_env

ONE_STRIKE = {"strike_limit": 1}
ISO = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")


@pytest.fixture
def kill(shop, cli) -> Callable[..., dict[str, Any]]:
    """`kill("a")`: a job that ends its pool child; its row in the dead set, caller told."""

    def send(job: str) -> dict[str, Any]:
        sent = shop.kill_child.delay(job)

        def found() -> dict[str, Any] | None:
            jobs = cli("dead", "list", "--json", options=ONE_STRIKE).json()["jobs"]
            return next((row for row in jobs if row["task_id"] == sent.id), None)

        with pytest.raises(Exception, match="was moved to the dead set"):
            sent.get(timeout=30)
        return eventually(found, every=0.2)

    return send


@pytest.fixture
def dead(bench, cli) -> Callable[[str], dict[str, Any]]:
    """`dead("a")`: a job of the dead set, as its row."""

    def put(job: str) -> dict[str, Any]:
        [killed] = bench.killed(payload(job, "celery", "shop.kill_child"), queue="celery")
        return cli("dead", "show", killed.id, "--json").json()

    return put


def test_list_and_show(cli, worker, kill, dead):
    worker(options=ONE_STRIKE)
    first, second = kill("a"), dead("b")

    listed = cli("dead", "list", "--json", process=True).json()
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

    for id in (first["id"], first["id"][:10], first["task_id"], first["task_id"][:10]):
        shown = cli("dead", "show", id, "--json").json()
        assert shown == first
    assert shown["task"] == "shop.kill_child"
    assert shown["queue"] == "celery"
    assert (shown["strikes"], shown["recoveries"]) == (1, 1)
    assert ISO.match(shown["time_of_death"])
    assert json.loads(shown["payload"])["headers"]["id"] == first["task_id"]

    text = cli("dead", "show", first["id"][:10], process=True).out
    for value in (first["task"], first["task_id"], first["reason"], first["time_of_death"]):
        assert value in text
    assert first["payload"] in text, "not cut, not wrapped"
    assert first["history"][-1]["owner"] in text


def test_a_start_that_fits_several_jobs_names_them(cli, bench):
    tasks = {f"5f2a9c0d-{end}": f"shop.{end}" for end in ("aaaa", "aabb")}
    for id, task in tasks.items():
        bench.killed(payload(id, task=task), queue="mail")
    ids = {job.task_id: job.id for job in bench.dead_set.find()}
    failed = cli("dead", "delete", "5f2a9c0d-aa", code=1)
    for task_id, task in tasks.items():
        assert f"{ids[task_id]} {task}[{task_id}]" in failed.err
    assert "matches 2 jobs" in failed.err
    assert "Deleted" in cli("dead", "delete", "5f2a9c0d-aab", answer="y\n").out
    # The start of one job's id and of another's task id.
    bench.killed(payload(ids["5f2a9c0d-aaaa"][:4] + "0000-x"), queue="mail")
    assert "matches 2 jobs" in cli("dead", "show", ids["5f2a9c0d-aaaa"][:4], code=1).err


def test_a_very_long_name_of_a_task_fills_no_terminal(cli, bench):
    [job] = bench.killed(payload("a", task="x" * 5_000), queue="mail")
    text = cli("dead", "list").out
    assert "x" * 77 + "..." in text
    assert "x" * 78 not in text
    assert cli("dead", "list", "--json").json()["jobs"][0]["task"] == job.task
    assert job.task in cli("dead", "show", job.id).out


def test_the_queue_of_a_job_is_named_without_its_priority(cli, bench):
    [job] = bench.killed(payload("a", task="shop.note"), queue="mail\x06\x163")
    assert cli("dead", "list", "--json").json()["jobs"][0]["queue"] == job.queue_list
    assert "mail" in (text := cli("dead", "list").out)
    assert "\\x06" not in text
    text = cli("dead", "show", job.id).out
    assert "Queue:         mail\n" in text
    done = cli("dead", "retry", job.id, "--to", "my queue")
    assert "start a worker with -Q 'my queue'" in done.err
    assert done.out == "Requeued to my queue: shop.note[a]\n"
    assert bench.queue("my queue\x06\x163") == [job.payload]


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


def test_no_command_lets_a_payload_speak_to_the_terminal(cli, bench):
    """E4. Not its results, not its errors, and not what is logged on the way."""
    red = "\x1b[31m"
    names = [f"{red}task", f"{red}deleted"]
    for number, name in enumerate(names):
        bench.killed(payload(f"{red}{number}", task=name), queue=f"{red}mail")
    retried, deleted = (f"{red}{number}" for number in range(2))
    bench.dead_owner([payload(f"{red}back", task=f"{red}own")], lists=["mail"])
    done = [
        cli("dead", "list"),
        cli("dead", "retry", retried, "--to", f"{red}elsewhere"),
        cli("dead", "delete", f"{red}none", code=1),
        cli("dead", "show", f"{red}none", code=1),
        cli("dead", "delete", deleted, "--yes"),
        cli("reap"),
        cli("status"),
        cli("status", "--wide"),
    ]
    for result in done:
        assert red not in result.out + result.err
    assert "\\x1b[31mtask" in done[1].out


def test_histories_that_others_wrote_hide_no_job(cli, bench):
    """E4."""
    foreign = [{"at": "x"}, {"at": 1e300}, {"at": None, "owner": 7}, "no event", None]
    [job] = bench.killed(payload("a"))
    record = json.loads(bench.client.hget(bench.keys.dead_jobs, job.id))
    record["history"] = foreign
    bench.client.hset(bench.keys.dead_jobs, job.id, json.dumps(record))
    [shown] = cli("dead", "list", "--json").json()["jobs"]
    assert [event["time"] for event in shown["history"][:3]] == [None] * 3
    assert "no event" in cli("dead", "show", job.id).out


def test_the_history_is_to_be_read_on_80_columns(bench, env):
    """No word of it is broken: not an owner's name, not a time."""
    host, reason = "shop-worker-7d9f8b6c5d-x2x9z", "pool child lost (signal 9 (SIGKILL) Job: 2.)"
    event = {"owner": f"{host}|4711|0123456789abcdef", "reason": reason, "strike": True}
    history = [{**event, "at": 1e9 + second} for second in range(2)]
    [job] = bench.killed(payload("a"))
    record = json.loads(bench.client.hget(bench.keys.dead_jobs, job.id))
    bench.client.hset(bench.keys.dead_jobs, job.id, json.dumps({**record, "history": history}))
    command = superfetch_command("dead", "show", job.id)
    with Terminal(command, process_env(env()), columns=80, lines=50) as terminal:
        assert terminal.wait_exit() == 0
        shown = " ".join(terminal.shows("Payload:", job.id))
    told = shown.partition("History, the oldest first:")[2].partition("Payload:")[0].split()
    for word in (host, event["owner"], "True", *reason.split()):
        assert told.count(word) == 2, word
    times = {"2001-09-09T01:46:40.000+00:00", "2001-09-09T01:46:41.000+00:00"}
    assert times <= {*told}


def test_a_retried_poison_job_runs_again(cli, worker, shop, kill, ledger):
    one = worker(options=ONE_STRIKE)
    job = kill("a")
    result = shop.kill_child.AsyncResult(job["task_id"])
    assert result.state == "FAILURE"
    one.stop()

    done = cli("dead", "retry", job["task_id"], "--json")
    row = {"id": job["id"], "task": "shop.kill_child", "task_id": job["task_id"]}
    assert done.json() == {"retried": [{**row, "queue": "celery"}], "errors": []}
    assert done.err == ""
    assert shop.kill_child.AsyncResult(job["task_id"]).state == "PENDING"
    found = cli("status", "--json").json()
    dead = {"size": 0, "of_app": 0, "limit": 10_000, "unannounced": 0}
    dead |= {"killed_lately": 0, "newest": None, "caps": NOTHING_KEPT}
    assert found["dead_set"] == dead, "what is put back is told of no more"
    assert found["counters"]["retried"] == 1
    assert "empty" in cli("dead", "list").out

    worker(options=ONE_STRIKE)
    eventually(lambda: ledger.runs()["a"] == 2)
    eventually(lambda: cli("dead", "list", "--json").json()["size"] == 1, every=0.2)


def test_retry_on_another_queue(cli, dead, client):
    job = dead("a")
    client.set("taken", "by something else")
    failed = cli("dead", "retry", job["id"], "--to", "taken", code=1)
    assert "'taken' is not a queue: the key holds a string" in failed.err
    assert cli("dead", "show", job["id"], "--json").json() == job

    done = cli("dead", "retry", job["id"][:12], "--to", "aside", answer="y\n")
    assert f"Requeued to aside: shop.kill_child[{job['task_id']}]" in done.out
    assert "no queue 'aside'" in done.err
    assert client.lrange("aside", 0, -1) == [job["payload"].encode()]
    # It is seen where nobody has ever served it, until it is empty; what no job went to is not.
    for _ in range(2):
        found = cli("status", "--json").json()
        assert "queue aside: 1 job" in str(found["findings"])
        assert "taken" not in str(found["queues"])
        cli("reap")
    client.delete("aside")
    cli("reap")
    assert "aside" not in str(cli("status", "--json").json()["queues"])


def test_a_broken_result_backend_does_not_hold_up_a_retry(cli, dead):
    first, second = dead("a"), dead("b")
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    done = cli("dead", "retry", first["id"], "--to", "aside", "--json", result_url=nowhere)
    assert "still shows the failure until the job has run" in done.err
    assert [row["id"] for row in done.json()["retried"]] == [first["id"]]
    done = cli("dead", "retry", second["id"], "--to", "aside", "--json", result_url="")
    assert "result" not in done.err, "no backend, no result: nothing to warn of"
    assert [row["id"] for row in done.json()["retried"]] == [second["id"]]


def test_an_unknown_id_does_not_hold_up_the_others(cli, dead):
    first, second, third = dead("a"), dead("b"), dead("c")
    assert "no job 'nope' in the dead set" in cli("dead", "show", "nope", code=1).err

    refused = cli("dead", "delete", first["id"], code=1, answer="n\n")
    assert f"{first['task']}[{first['task_id']}]" in refused.err
    assert "Delete 1 job for good?" in refused.err
    done = cli("dead", "delete", "nope", first["id"], code=1, answer="y\n")
    assert "no job 'nope' in the dead set" in done.err
    assert f"Deleted {first['id']}: {first['task']}[{first['task_id']}]\n" in done.out
    done = cli("dead", "delete", second["task_id"], "nope", "--yes", "--json", code=1).json()
    assert done["deleted"] == [second["id"]]
    assert [error["id"] for error in done["errors"]] == ["nope"]
    done = cli("dead", "retry", "nope", third["id"], "--to", "aside", "--json", code=1).json()
    assert [row["id"] for row in done["retried"]] == [third["id"]]
    assert [error["id"] for error in done["errors"]] == ["nope"]
    found = cli("status", "--json").json()
    assert found["dead_set"]["size"] == 0
    assert found["counters"]["dead_deleted"] == 2


def test_purge_asks_first(cli, dead):
    assert cli("dead", "purge").out == "Deleted 0 jobs.\n", "nothing to ask about"
    dead("a")
    refused = cli("dead", "purge", answer="n\n", code=1)
    assert "Delete the only job" in refused.err
    cli("dead", "purge", code=1)  # nobody there to answer
    assert cli("dead", "list", "--json").json()["size"] == 1
    assert cli("dead", "purge", "--json", answer="y\n").json() == {"deleted": 1}
    dead("b")
    assert cli("dead", "purge", "--yes").out == "Deleted 1 job.\n"
    assert cli("dead", "list", "--json").json()["size"] == 0
