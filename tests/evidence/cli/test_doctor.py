"""`celery superfetch doctor` on real apps and servers: each finding, and none where all is well."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_superfetch.app.reaper import record_pass
from celery_superfetch.console.permissions import OPTIONAL, REQUIRED, name_of, refused
from celery_superfetch.inspector import Inspector
from support.waiting import eventually
from support.workers.bench import Bench, elsewhere, ended_process, payload
from support.workers.cli import Result
from support.workers.inbox import stock


def codes(result: Result) -> dict[str, str]:
    """Each finding's level and text, by its code."""
    found = result.json()["findings"]
    assert all(one["fix"] for one in found)
    return {one["code"]: f"{one['level']}: {one['text']}" for one in found}


def test_nothing_is_wrong_with_a_worker_on_a_server_that_saves(cli, worker, fresh_server):
    server = fresh_server(appendonly=True)
    settings: dict[str, Any] = {"url": server.url(), "options": {"reap_interval": 1}}
    settings["result_url"] = server.url(1)
    worker(**settings)
    eventually(lambda: server.client().exists("superfetch:last_pass"), message="a pass was made")
    if redis.VERSION < (6, 1):  # that alone: what kombu 5.5 allows may stop for ever
        assert codes(cli("doctor", "--json", code=1, **settings)).keys() == {"redis-py"}
        return
    done = cli("doctor", **settings)
    assert done.out == "No problem was found in the app or the server.\n"
    assert cli("doctor", "--json", process=True, **settings).json() == {"findings": []}


def test_a_redis_py_that_may_deadlock_is_named_by_the_doctor_and_by_each_worker(cli, worker):
    old = redis.VERSION < (6, 1)
    said = f"redis-py {redis.__version__} can deadlock this process"
    assert (said in cli("doctor", code=1).out) == old
    assert (said in worker(concurrency=1).log()) == old


def test_what_is_wrong_with_the_app(cli):
    conf = {"task_acks_late": False, "worker_prefetch_multiplier": 0}
    done = cli("doctor", conf=conf, code=1)
    assert "Warning [early-ack]: " in done.out
    assert "Fix: leave acks_late at install()'s default" in done.out
    assert {"early-ack", "prefetch-unbounded"} <= {
        *codes(cli("doctor", "--json", conf=conf, code=1))
    }


def test_what_is_wrong_with_the_server(cli, fresh_server):
    server = fresh_server(maxmemory="50mb", maxmemory_policy="allkeys-lru")
    found = codes(cli("doctor", "--json", url=server.url(), code=1))
    assert found["eviction"].startswith("critical: the server may evict jobs")
    assert found["no-persistence"].startswith("warning: ")


def test_what_is_wrong_with_who_works_and_what_waits(cli, make_bench, client, make_app):
    bench = make_bench()
    one = bench.owner(lists=["celery"], version="0.0.9", node="celery@one")
    bench.age(bench.owner(elsewhere("web-2"), lists=["far"], node="celery@two"), 50 * 3_600_000)
    gone = bench.owner(ended_process(), lists=["celery"], register=False)
    bench.give(gone.owner, "celery", [payload("lost")])
    bench.land("web-9|7|x", "celery", payload("landed"))
    bench.push("mail", payload("m"))
    client.hset("unacked", "tag", "[]")
    known = [payload(n, "celery") for n in range(300)]
    strange = [payload(n, "celery", task=f"old.task{n % 3}") for n in range(5)]
    bench.push("celery", *known, *strange)
    reaper = bench.reaper()
    report = reaper.reap()
    report.lists.add("mail")
    record_pass(reaper, report)
    client.hset(bench.keys.last_pass, "at", 1)
    assert "no-pass" not in codes(cli("doctor", "--json", code=1)), "nobody was there to make it"
    client.hset(bench.keys.owner_record(one.owner), "registered_at", 1)

    found = codes(cli("doctor", "--json", code=1))
    assert "2 d" in found["silent-owner"]
    assert found["versions"].startswith("note: workers run celery_superfetch 0.0.9 (1)")
    assert found["orphans"].startswith("warning: Redis has jobs of 2 workers whose record")
    assert gone.owner in found["orphans"]
    assert "web-9|7|x" in found["orphans"]
    assert found["no-consumer"].startswith("critical: queue mail: 1 job")
    assert found["unacked"].startswith("warning: 1 job unacked")
    assert found["no-pass"].startswith("warning: no reap pass for")
    assert "5 jobs of tasks that app shop does not have" in found["unknown-task"]
    assert "old.task0, old.task1, old.task2" in found["unknown-task"]
    # Who looks changes nothing.
    assert client.llen("celery") == 305
    assert len(bench.registry.owners()) == 2


def test_jobs_of_others_are_none_of_our_business(cli, make_bench):
    bench = make_bench(app_name="other")
    bench.owner(lists=["theirs"])
    bench.push("theirs", payload("t", "theirs", task="other.task"))
    assert "unknown-task" not in codes(cli("doctor", "--json", code=1))


@pytest.mark.parametrize("prefix", ["", "{a[b]}:"])
def test_a_queue_whose_name_a_sender_misspells_is_found(cli, url, make_app, prefix):
    options = {"global_keyprefix": prefix}
    app = make_app(options=options)
    app.send_task("shop.note", ("a",), queue="celery")
    assert "unknown-queue" not in codes(cli("doctor", "--json", code=1, options=options))
    for priority in (0, 9):
        app.send_task("shop.note", ("b",), queue="celry", priority=priority)
    found = codes(cli("doctor", "--json", code=1, options=options))["unknown-queue"]
    assert found.startswith("warning: jobs wait on queues")
    assert ": celry (2 jobs" in found
    with stock(url, "other") as inbox:
        inbox.turn()
        found = codes(cli("doctor", "--json", code=1, options=options))["unknown-queue"]
    assert found.startswith("note: "), "it may serve that queue"


def test_jobs_on_an_unknown_queue_have_an_age(cli, client, make_app):
    """No message says when it was sent; the server knows for how long none came or went."""
    app = make_app()
    for name, priority, idle_s in (("celry", 0, 7200), ("celry", 9, 10_800), ("mial", 0, 0)):
        app.send_task("shop.note", ("b",), queue=name, priority=priority)
        key = f"{name}\x06\x16{priority}" if priority else name
        client.restore(key, 0, client.dump(key), replace=True, idletime=idle_s)
    found = codes(cli("doctor", "--json", code=1))["unknown-queue"]
    assert found.partition("has consumed: ")[2].startswith(
        "celry (2 jobs, each at least 2 h old), mial (1 job"
    )
    assert "mial (1 job)" in found or "mial (1 job, at least" in found


@pytest.fixture
def user(fresh_server):
    """`user("+get", ...)`: the URL of a user that may do this; and their bench as admin."""
    server = fresh_server()

    def make(*rules: str) -> str:
        admin = server.client()
        admin.execute_command("ACL", "SETUSER", "u", "reset", "on", ">pw", "&*", *rules)
        return f"redis://u:pw@127.0.0.1:{server.port}/0"

    return make


NEEDS = [
    "+ping",
    "+select",
    "+hello",
    "+multi",
    "+scard",
    "+zcount",
    "+hlen",
    "+brpop",
    "+client|setname",
]


def test_each_command_that_is_forbidden_is_named(user):
    names = [name_of(line) for line in [*REQUIRED, *OPTIONAL]]
    allowed = [f"+{name}" for name in names]
    # llen: for each queue, too
    some = "blmove llen zscan client|kill config|get scan persist zmscore"
    for missing in (None, *some.split()):
        url = user("~*", "+multi", *(one for one in allowed if one != f"+{missing}"))
        with redis.Redis.from_url(url) as client:
            bench = Bench(client)
            found = refused(Inspector(bench.database), ["mail"])
            assert found is not None
            assert [*found.required, *found.optional] == ([missing] if missing else [])
            assert (found.names, found.unknown) == ([], frozenset())
            assert client.exists("mail", bench.keys.never) == 0, "nothing was done"
    with redis.Redis.from_url(user("~*", "+ping")) as client:
        assert refused(Inspector(Bench(client).database), []) is None
    with redis.Redis.from_url(user("~superfetch:*", "+@all")) as client:
        found = refused(Inspector(Bench(client).database), ["mail", "celery"])
        assert found == ([], {}, ["mail", "celery"], frozenset())


def test_who_may_not_see_the_jobs_of_stock_workers_sees_the_rest(cli, user):
    url = user("~superfetch:*", "~celery*", "~_kombu*", "+@all")
    found = cli("status", "--json", url=url).json()
    assert (found["unacked"], found["findings"][0]["code"]) == (0, "no-worker")
    assert "no live worker is registered" in cli("check", url=url, code=2).out


def test_a_key_of_another_program_that_is_called_unacked_hides_nothing(cli, db):
    db.client.lpush("unacked", "a letter")
    assert cli("status", "--json").json()["unacked"] == 0
    assert "no live worker is registered" in cli("check", code=2).out


def test_whoever_has_the_permissions_of_the_page_sees_all(cli, user):
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "options.md"
    [line] = re.findall(r"ACL SETUSER shop on >password (.*?)```", page.read_text(), re.DOTALL)
    [more] = re.findall(r"The commands and the web page:\*\* `([^`]+)`", page.read_text())
    url = user(*line.split(), *more.split())
    with redis.Redis.from_url(url) as client:
        bench = Bench(client)
        bench.owner(lists=["celery"])
        bench.killed(payload("old"), payload("new"))
    assert cli("status", "--json", url=url).json()["dead_set"]["newest"]["task_id"] == "new"
    assert len(cli("dead", "list", "--json", url=url).json()["jobs"]) == 2
    assert "cannot be reached" not in cli("check", url=url, code=1).out
    assert "superfetch_up 1.0" in cli("metrics", "--once", url=url).out


def test_permissions_as_the_doctor_tells_of_them(cli, user):
    allowed = [f"+{name}" for name in map(name_of, REQUIRED)] + NEEDS + ["+info", "+config|get"]
    found = codes(cli("doctor", "--json", url=user("~*", *allowed), code=1))
    assert found["acl-optional"].startswith("note: the server's ACL forbids this user")
    assert "acl-required" not in found
    # What the overview needs as well: the doctor says so all the same.
    fewer = [word for word in allowed if word not in ("+zrange", "+hsetnx")]
    found = codes(cli("doctor", "--json", url=user("~*", *fewer), code=1))
    assert found["acl-required"].startswith(
        "critical: the server's ACL forbids this user hsetnx, zr"
    )
    assert "no-overview" in found
    fixes = cli("doctor", url=user("~*", *fewer), code=1).out
    assert "Fix: ACL SETUSER <name> +scard +zcount: `status`, `check` and" in fixes
