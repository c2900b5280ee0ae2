"""Records that make no sense, by anyone who writes to the database: what is odd falls back. It ends
no `status`, no page, no metrics and no pass, and keeps no job of others from its queue."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

import celery_superfetch
from celery_superfetch.console import metrics
from celery_superfetch.console.web import create_app
from celery_superfetch.model.config import Config
from celery_superfetch.model.job import digest
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.model.process import ProcessImage, look_at
from celery_superfetch.model.records import parsed_json, real, text_of, whole
from celery_superfetch.model.verdict import Reason
from celery_superfetch.store import stats
from support.workers.bench import Bench, elsewhere, image_of, payload

OWN = "superfetch:"
PACKAGE = Path(celery_superfetch.__file__).parent
HUGE = b"9" * 400
#: What nobody would write who means well: numbers that are none, JSON of another shape, no UTF-8.
ODD = [
    *(b"", b"x", b"-1", b"0", b"nan", b"inf", b"-inf", b"1e400", HUGE, b"null", b"true", b"[]"),
    *(b"{}", b"[[]]", b"[1]", b"[1,2,3,4]", b'["a","b","c","d"]', b'[[1,2],["a","b"]]'),
    *(b'[[%s,"x"]]' % HUGE, b'[["t","i","d",1e30]]', b"[[1,%s]]" % HUGE, b"[[1,-5]]"),
    *(b'{"a":{}}', b'{"mail":1e999}', b"\xff\xfe", b'["\\ud800"]', b'"\\ud800"', b"[NaN]"),
    *(b'{"at":"x"}', b'{"at":1e30,"node":null}', b'{"at":1}', b'{"at":NaN}', b"[" * 2000),
    b'{"at":true,"node":[],"recovered":"x","owner":{},"reason":7,"killed":null}',
    *(b'[1e30,1,"h",1]', b'[1,"x",{},[]]', b'[-1e15,1,"h",1]', b'[1,2,"h",NaN]'),
    *(b'{"payload":1,"encoding":"base64"}', b'{"payload":"x","encoding":"base64","history":3}'),
    b'{"payload":"x","encoding":"utf-8","history":[1,null],"queue":1,"strikes":"many"}',
    b'{"digest":"d","task":"t","id":"i","queue_list":"q"}',
]
TIMES = (1e300, -1e300, float("inf"), float("-inf"), 1.0)
#: What `status` and the others show, each in a form that a program could not take.
COMMANDS = ("status", "status --wide", "status --json", "jobs", "jobs --json", "doctor", "check")
COMMANDS += (
    "charts",
    "charts --json --hours 24",
    "server",
    "dead list",
    "dead list --json",
    "reap --dry-run",
    "reap",
)


def put_odd(bench: Bench) -> None:
    """Fill each structure with all that is odd."""
    client, fields = bench.client, [*bench.owner(elsewhere(), register=False).dump()]
    for at, odd in enumerate(ODD):
        for field in (*fields, "registered_at", "state_before_reap", "ran_at_reap"):
            owner = bench.owner(elsewhere(f"{field}-{at}"), lists=["mail"])
            client.hset(bench.keys.owner_record(owner.owner), field, odd)
        score = TIMES[at % len(TIMES)]
        for key in (
            "owners",
            "reaped",
            "deaths",
            "probation",
            "dead",
            "parked",
            "stopped",
            "minutes:rows",
        ):
            (client.sadd if key == "probation" else client.zadd)(
                OWN + key, odd if key == "probation" else {odd: score}
            )
        client.zadd(f"{OWN}served", {odd: 1e300})
        client.zadd(f"{OWN}minutes:rows", {f"succeeded\tq{at}": score, f"failed\tq{at}": 1})
        client.sadd(f"{OWN}dead:unannounced", odd)
        for key, field in (
            ("stats", f"x{at}"),
            ("stats", f"recovered\tq\tt{at}"),
            ("runs", f"succeeded\tq\tt{at}"),
            ("runs", f"seconds\t1\tt{at}"),
            ("minutes", f"1\tsucceeded\tq{at}"),
            ("minutes", f"10\tfailed\tq{at}"),
            ("minutes", "1\tfailed\t"),
            ("beats", f"app{at}"),
            ("oldest", f"q{at}"),
            ("last_pass", ("at", "by", "seconds", "interval", "owners", "recovered")[at % 6]),
        ):
            client.hset(OWN + key, field, odd)
        for key in ("stats", "runs", "beats", "oldest", "last_pass"):
            client.hset(OWN + key, odd, 3)
        client.zadd(f"{OWN}dead", {f"{at:040x}": score})
        client.hset(f"{OWN}dead:jobs", f"{at:040x}", odd)
        client.zadd(f"{OWN}parked:q{at}", {odd: score})
        client.hset("unacked", f"t{at}", odd)
        client.zadd("unacked_index", {f"t{at}": 1})
        client.lpush("celery", odd)
    holder = bench.owner(lists=["mail"])
    for at, odd in enumerate(ODD):
        client.hset(bench.keys.private(holder.owner), odd, b"x")
        client.hset(bench.keys.private(holder.owner), f"{at + 1}:mail", odd)


def test_odd_records_end_no_status_no_page_and_no_metrics(bench, cli, make_app):
    """One counter that was no number ended `status`, the page and the metrics."""
    put_odd(bench)
    for words in COMMANDS:
        done = cli(*words.split(), code=None)
        assert done.code in (0, 1, 2), words
        assert "Traceback" not in done.err, words
        assert done.out, words
        if "--json" in words:
            json.loads(done.out)
    app = make_app()
    page = TestClient(create_app(app), base_url="http://localhost")
    jobs = "/jobs", "/jobs?state=parked", "/jobs?state=probation", f"/jobs/{digest(b'x')}"
    for path in ("/", *jobs, "/workers", "/recurring", "/dead"):
        assert page.get(path).status_code == 200, path
    assert "superfetch_up 1" in metrics.text_of(app)


def test_the_control_a_reader_without_a_fallback_ends_it(bench, cli, monkeypatch):
    put_odd(bench)
    monkeypatch.setattr(stats, "whole", int)
    with pytest.raises((TypeError, ValueError)):
        cli("status")


#: What is kept of a job that came back.
HISTORY = ("strikes", "recoveries", "history", "solo_runs", "stops", "deaths", "alongside")
HISTORY += ("first_claim", "token", "steps", "requeues", "quiesced")


def test_a_job_with_an_odd_history_is_recovered_claimed_and_requeued(bench):
    """A count that was no number, or a history that was no list, kept a job in its dead owner's
    list for ever: the decision was made on 0, and the script compared the text."""
    jobs = {}
    for field in HISTORY:
        for at, odd in enumerate(ODD):
            raw = payload(f"{field}-{at}")
            jobs[raw] = field
            bench.client.hset(bench.keys.history(digest(raw)), field, odd)
    bench.client.set(bench.keys.has_history, 1)
    owner = bench.dead_owner([*jobs], running=[*jobs][::2])
    report = bench.reaper().reap()
    assert report.errors == 0
    assert bench.held(owner) == []
    back = [*bench.queue(), *bench.on_probation(), *(job.payload for job in bench.dead_set)]
    assert sorted(back) == sorted(jobs), "each of them once"
    bench.client.delete("mail")
    claimed = bench.take(bench.owner(), *jobs, most=len(jobs))
    for each in claimed:
        assert each.token > 0
        assert each.counters is None or each.counters.as_header()


@pytest.mark.parametrize("pid", [0, -1, -(2**31), 2**22 + 1, 2**63, 10**30])
def test_an_owner_of_no_possible_pid_is_dead(bench, pid):
    """To the kernel 0 and -1 are groups of processes, and those exist: such an owner never died."""
    image = ProcessImage.current()
    owner = bench.dead_owner([payload("1")], process=image_of(os.getpid()))
    bench.client.hset(
        bench.keys.owner_record(owner.owner), mapping={"pid": pid, "image": image.image}
    )
    assert look_at(pid, image.start_time) is Reason.PROCESS_GONE
    report = bench.reaper().reap()
    assert [*report.dead.values()] == [Reason.PROCESS_GONE]
    assert bench.queue() == [payload("1")]


@pytest.mark.parametrize(
    "score", ["inf", "-inf", "1e300", "-1e300", "1700000000000.25", "-0.5", "0"]
)
def test_an_owner_of_an_odd_score_is_dead(bench, score):
    """It was heard for ever: the mark compared it with the whole milliseconds of the verdict."""
    owner = bench.dead_owner([payload("1")])
    bench.client.zadd(bench.keys.owners, {owner.owner: score})
    report = bench.reaper().reap()
    assert [*report.dead] == [owner.owner]
    assert bench.queue() == [payload("1")]


def test_the_control_a_score_that_has_changed_since_marks_nobody(bench):
    owner = bench.dead_owner([payload("1")])
    for before, after in ((5, "6.5"), (5, "inf"), (0, "1e300"), (5, "4.9")):
        bench.client.zadd(bench.keys.owners, {owner.owner: after})
        assert bench.registry.mark(owner, before, 60, "odd") is None
    assert bench.queue() == []


def test_the_control_the_kernel_says_that_they_are_there():
    os.kill(0, 0)
    os.kill(-1, 0)


def test_no_process_of_a_record_gets_a_signal_but_0(bench, cli, monkeypatch):
    """Whatever its record says: that it runs, hangs, is another's, or has lost its parent."""
    sent: list[tuple[int, int]] = []
    kill = os.kill

    def send(pid: int, number: int) -> None:
        sent.append((pid, number))
        kill(pid, number)

    with psutil.Popen(["sleep", "60"]) as innocent:
        image = image_of(innocent.pid)
        pool = ((innocent.pid, image.start_time),)
        for state in ("running", "hung", "stopping"):
            bench.give(bench.owner(image, state=state), "mail", [payload(state)])
        for changed in ({"start_time": "1"}, {"pid": 2**22 + 1}, {"image": "another"}):
            other = ProcessImage(**{**vars(image), **changed})
            bench.give(bench.owner(other, pool=pool), "mail", [payload(str(changed))])
        monkeypatch.setattr(os, "kill", send)
        for words in ("status", "jobs", "doctor", "check --this-host", "reap", "reap --wait 1"):
            cli(*words.split(), code=None)
        assert (innocent.pid, 0) in sent
        assert {number for _, number in sent} == {0}
        assert innocent.is_running()
        innocent.kill()


#: Where the package ends a process: a pool's child of its own, itself, and what the host says is a
#: worker (``test_drill_kills.py``).
ENDS = {
    "model/process.py": 1,  # signal 0
    "model/worker_process.py": 2,
    "worker/prefork.py": 1,
    "worker/stopping.py": 2,  # its own signal, again; a pool's child that reads nothing
}


KILLS = {"os.kill", "os.killpg", "process.kill", "child.kill", "process.terminate"}


def test_nothing_else_in_the_package_ends_a_process():
    """A new place has to say here why it may."""
    found: dict[str, int] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in KILLS:
                place = str(path.relative_to(PACKAGE))
                found[place] = found.get(place, 0) + 1
    assert found == ENDS


@pytest.mark.parametrize("value", ODD)
def test_what_makes_no_sense_falls_back(value):
    assert abs(whole(value)) <= 2**53
    assert abs(real(value)) <= 2**53
    assert isinstance(parsed_json(value, list[Any]()), list)
    assert text_of(value) == ""
    text_of(value.decode(errors="surrogateescape")).encode()
    OwnerRecord.load("h|1|n", {b"pool": value, b"lists": value, b"connections": value}, Config())
