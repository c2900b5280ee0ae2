"""`celery superfetch dead ...` on jobs by filter."""

from __future__ import annotations

import base64
import signal

import pytest
from redis.connection import AbstractConnection

from support.process import Process
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.cli import superfetch_command
from support.workers.worker import process_env

DAY = 86_400_000


@pytest.fixture
def dead(bench: Bench) -> Bench:
    """Three of a kind, the older the higher the number, one of another task, and junk."""
    now = bench.database.server_time()
    notes = bench.killed(*(payload(n) for n in range(3)), reason="its process is gone")
    for days, job in enumerate(notes):
        bench.die_at(job, now - days * DAY - 5000)
    bench.killed(payload("add", task="shop.add", argsrepr="(1, 2)", kwargsrepr="{}"), queue="slow")
    bench.killed(b"\x1bjunk", reason="unparseable payload")
    return bench


def test_list_filters_and_pages(cli, dead):
    def listed(*args):
        return [row["task_id"] for row in cli("dead", "list", "--json", *args).json()["jobs"]]

    assert listed() == [None, "add", "0", "1", "2"] or listed() == ["add", None, "0", "1", "2"]
    assert listed("--task", "shop.note", "--older-than", "12h") == ["1", "2"]
    assert listed("--queue", "slow", "--newer-than", "3600") == ["add"]
    assert listed("--reason", "process", "--first", "1", "--count", "1") == ["1"]
    page = cli("dead", "list", "--task", "shop.*", "--count", "2")
    assert "1 to 2 of the jobs that match, the newest first. More: --first 2." in page.out
    assert "(1, 2) {}" in page.out
    assert "None of the 5 jobs" in cli("dead", "list", "--task", "nobody").out


def test_show_tells_args_and_history(cli, dead):
    shown = cli("dead", "show", "add", "--json").json()
    assert (shown["args"], shown["kwargs"]) == ("(1, 2)", "{}")
    [entry] = shown["history"]
    assert (entry["owner"], entry["host"]) == ("elsewhere|1|nonce", "elsewhere")
    assert entry["time"] == shown["time_of_death"]
    text = cli("dead", "show", "add").out
    assert "Exit status" not in text, "the reason tells it, where it is known"
    assert "(1, 2)" in text
    assert entry["time"] in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["list", "--older-than", "soon"],
            "must be an age such as 90, 90s, 15m, 36h or 7d, got 'soon'",
        ),
        (["list", "--older-than", "2d", "--newer-than", "1d"], "the filters exclude each other"),
        (["retry"], "no jobs selected"),
        (["retry", "0", "--queue", "slow"], "--to QUEUE is where they go"),
        (["retry", "--all", "--task", "x"], "--all cannot be combined"),
        (["retry", "--task", "", "--yes"], "'task' is empty"),
        (["retry", "0", "--to", ""], "must be the name of a queue"),
        (["delete"], "no jobs selected"),
        (["delete", "0", "--queue", "slow"], "not both"),
        (["delete", "--task", "", "--yes"], "'task' is empty"),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused(cli, dead, args, said):
    code = 2 if "must be an age" in said or (args[0] != "list" and "empty" not in said) else 1
    assert said in " ".join(cli("dead", *args, code=code).err.split())
    assert len(dead.dead_set) == 5


def test_retry_by_filter_asks_first_and_says_how_many(cli, dead):
    refused = cli("dead", "retry", "--task", "shop.note", answer="n\n", code=1)
    assert "Requeue 3 dead jobs of task shop.note?" in refused.err
    cli("dead", "retry", "--all", code=1)  # nobody there to answer
    assert len(dead.dead_set) == 5
    done = cli("dead", "retry", "--task", "shop.note", "--older-than", "1d", "--yes")
    assert done.out == "Requeued 2 of 2 jobs.\n"
    assert "2 of 2 jobs" in done.err
    assert dead.queue() == [payload(2), payload(1)], "that died first comes first"
    done = cli("dead", "retry", "--queue", "slow", "--to", "mail", "--json", answer="y\n").json()
    assert [row["queue"] for row in done["retried"]] == ["mail"]
    assert cli("dead", "retry", "--task", "nobody").out == "Requeued 0 of 0 jobs.\n"


def test_delete_by_filter_asks_first_and_says_how_many(cli, dead):
    refused = cli("dead", "delete", "--task", "shop.note", answer="n\n", code=1)
    assert "Delete 3 dead jobs of task shop.note for good?" in refused.err
    assert len(dead.dead_set) == 5
    done = cli("dead", "delete", "--task", "shop.note", "--older-than", "1d", "--yes")
    assert done.out == "Deleted 2 of 2 jobs.\n"
    left = [job.task_id for job in dead.dead_set]
    assert sorted(map(str, left)) == ["0", "None", "add"]
    done = cli("dead", "delete", "--queue", "slow", "--json", answer="y\n").json()
    assert len(done["deleted"]) == 1
    assert dead.queue() == dead.queue("slow") == []
    assert cli("dead", "delete", "--task", "nobody").out == "Deleted 0 of 0 jobs.\n"


@pytest.mark.parametrize("do", ["retry", "delete"])
def test_with_yes_the_beginning_of_an_id_selects_no_job(cli, bench, do):
    """A script with a cut id acted on whichever job began with it that day."""
    one, two = bench.killed(payload("5f2a9c0d-aaaa"), payload("5f2a9c0d-bbbb"))
    for begin in (one.id[:12], "5f2a9c0d-aa"):
        refused = cli("dead", do, begin, two.id, "--yes", code=1)
        assert f"only the beginning of id {one.id}, shop.note[5f2a9c0d-aaaa]" in refused.err
        assert [job.id for job in bench.dead_set] == [one.id], "the whole id was obeyed"
        bench.killed(payload("5f2a9c0d-bbbb"))
    cli("dead", do, one.id[:12], code=1)  # no person is there to answer
    shown = cli("dead", do, one.id[:12], answer="n\n", code=1)
    assert f"{one.id} shop.note[5f2a9c0d-aaaa]" in shown.err
    assert bench.dead_set.contains([one.id]) == [True]
    verb = {"retry": "Requeue 1 job?", "delete": "Delete 1 job for good?"}[do]
    assert verb in cli("dead", do, one.id[:12], answer="y\n").err
    assert bench.dead_set.contains([one.id]) == [False]
    assert "?" not in cli("dead", do, "5f2a9c0d-bbbb", "--yes").err, "a task id is whole, too"
    assert not len(bench.dead_set)


def test_a_list_as_json_is_a_whole_copy(cli, bench: Bench):
    raws = [b"\xff\0junk", b"", "sch\u00f6n".encode(), *(payload(n) for n in range(120))]
    bench.killed(*raws)
    copy = cli("dead", "list", "--json", "--count", "1000000").json()
    assert (copy["size"], copy["more"]) == (len(raws), False)
    payloads = [
        base64.b64decode(row["payload"]) if row["encoding"] == "base64" else row["payload"].encode()
        for row in copy["jobs"]
    ]
    assert sorted(payloads) == sorted(raws)


def test_many_errors_do_not_hide_what_was_done(cli, bench: Bench):
    """When two people retry all at once, each is refused what the other has put back."""
    jobs = bench.killed(*(payload(n) for n in range(30)))
    bench.dead_set.reserve(jobs[1:])  # somebody else's
    done = cli("dead", "retry", "--all", "--yes", code=1)
    assert done.out == "Requeued 1 of 30 jobs.\n"
    assert done.err.count("is being retried by another process") == 20
    assert "and 9 more errors; --json lists all" in done.err
    assert len(cli("dead", "retry", "--all", "--yes", "--json", code=1).json()["errors"]) == 29


def test_a_retry_costs_round_trips_for_each_hundred_jobs_and_not_for_each_job(
    cli, bench, client, monkeypatch
):
    """Counted where they are sent, a pipeline as one: how often the server reads depends on how
    busy the machine is. The server has forgotten its scripts, as after a restart."""
    bench.killed(*(payload(f"n{n}") for n in range(300)))
    send, sent = AbstractConnection.send_packed_command, []

    def noted(connection, *args, **kwargs):
        sent.append(connection)
        return send(connection, *args, **kwargs)

    def trips(*words: str) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "send_packed_command", noted)
            sent.clear()
            client.script_flush()
            cli("dead", "retry", *words, "--yes")
        return len(sent)

    few = trips("--task", "shop.note", "--older-than", "0s", "--queue", "nosuch")
    assert 0 < trips("--all") - few < 60
    assert client.llen("mail") == 300


def test_an_interrupted_retry_says_how_far_it_came_and_reserves_nothing(
    cli, bench, env, keep, fresh_server, tmp_path, client
):
    results = fresh_server()
    bench.killed(*(payload(n) for n in range(3)))
    results.pause()
    settings = {"result_url": results.url()}
    command = superfetch_command("dead", "retry", "--all", "--yes")
    process = keep(Process(command, log=tmp_path / "retry.log", env=process_env(env(**settings))))
    locks = bench.keys.lock("retry:*")
    eventually(lambda: len([*client.scan_iter(locks)]) == 3, message="the jobs are reserved")
    process.signal(signal.SIGINT)
    assert process.wait_exit() == 130
    assert "Interrupted: 0 of 3 jobs were processed." in process.log()
    results.resume()
    assert cli("dead", "retry", "--all", "--yes", **settings).out == "Requeued 3 of 3 jobs.\n"
