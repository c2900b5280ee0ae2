"""Text of messages and records is data: in tables, titles, errors, logs and labels of metrics it
begins no line of its own, and no terminal obeys it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from celery_superfetch.console import metrics
from celery_superfetch.model import arguments, log_text
from celery_superfetch.model.job import claim_number, digest
from celery_superfetch.model.process import ProcessImage
from celery_superfetch.reaper.report import Report
from celery_superfetch.store.stats import Stats
from celery_superfetch.worker.run_counts import RunCounts
from support.waiting import eventually
from support.workers.bench import Bench, ended_process, payload

FORGED = "All is well: 1 worker."
#: A line's end and a line of its own, ESC, BEL, CSI of eight bits, what turns text around, and
#: other ends of lines.
EVIL = f"evil\n{FORGED}\r\x1b[2J\x1b]0;title\x07\x9b31m\u202emoc\u2066\u2028\x85\x00end"


def is_harmless(text: str) -> bool:
    """Whether no line is forged, and each character is one that is seen."""
    lines = text.split("\n")
    return not any(line.lstrip().startswith(FORGED) for line in lines) and all(
        line.isprintable() for line in lines
    )


def fill(bench: Bench) -> None:
    """Name everything that has a name, and give every reason, in evil words."""
    client = bench.client
    evil = payload(EVIL, queue=EVIL, task=EVIL)
    owner = bench.owner(lists=[EVIL], node=EVIL, app=EVIL, state="running")
    first, _ = bench.give(owner, EVIL, [evil, payload(EVIL + "2", task=EVIL)])
    bench.run_one(first)
    started = json.dumps([[claim_number(first.claim_id), 1]])
    client.hset(bench.keys.owner_record(owner.owner), "started_jobs", started)
    image = ProcessImage(**{**vars(ended_process()), "host": EVIL})
    away = bench.owner(image, lists=[EVIL], node=EVIL, state="hung")
    bench.give(away, EVIL, [payload("other", task=EVIL)])
    bench.killed(payload(EVIL + "3", task=EVIL), payload(EVIL + "4", task=EVIL), reason=EVIL)
    bench.push(EVIL, evil)
    client.hset("superfetch:oldest", EVIL, "")
    death = {"at": bench.database.server_time(), "node": EVIL, "owner": EVIL, "reason": EVIL}
    client.zadd("superfetch:deaths", {json.dumps({**death, "recovered": 1}): death["at"]})
    client.hset("superfetch:beats", EVIL, json.dumps([1, 1, EVIL, 3]))
    client.hset("superfetch:stats", EVIL, 3)
    client.hset("superfetch:stats", f"recovered\t{EVIL}\t{EVIL}", 3)
    client.hset("superfetch:runs", f"succeeded\t{EVIL}\t{EVIL}", 3)
    client.hset("superfetch:runs", f"seconds\t1\t{EVIL}", 3)
    counts = RunCounts()
    counts.count_run(EVIL, EVIL, None, 0.1)
    counts.count(bench.database)
    Stats(bench.database).record_pass({"by": EVIL}, {EVIL: 3})
    client.hset("superfetch:last_pass", mapping={"at": death["at"], "by": EVIL})
    client.set("superfetch:queue-that-is-none", EVIL)


COMMANDS = ("status", "status --wide", "jobs", "jobs --wide", "doctor", "check", "dead list")
COMMANDS += ("dead list --wide", "reap --dry-run", "dead show evil")
COMMANDS += ("jobs --sort run", "jobs show no-such-job", "charts", "charts --hours 24", "server")
COMMANDS += ("recurring", "workers", "workers --wide", "workers stop evil --yes")
COMMANDS += ("dead retry evil", "dead delete evil", "rollback", "migrate", "reap")


def test_no_command_prints_a_line_or_a_sequence_of_a_message(bench, cli):
    """A task id printed "All is well" in `status`; an ambiguous id its jobs, raw."""
    fill(bench)
    for words in COMMANDS:
        done = cli(*words.split(), code=None)
        assert is_harmless(done.out), words
        assert is_harmless(done.err), words
    fill(bench)
    [first, *_] = bench.dead_set
    for id in (first.id, digest(payload(EVIL, queue=EVIL, task=EVIL))):
        assert is_harmless(cli("jobs", "show", id).out)
    shown = cli("dead", "show", first.id)
    assert is_harmless(shown.out)
    assert "\\nAll is well" in shown.out, "it is there, escaped"
    asked = cli("dead", "delete", first.id, answer="n\n", code=1)
    assert is_harmless(asked.err.replace("Aborted!", ""))


def test_json_says_it_whole_and_in_ascii(bench, cli):
    fill(bench)
    for words in ("status --json", "charts --json", "jobs --json", "dead list --json"):
        out = cli(*words.split(), code=None).out
        assert out.isascii(), words
        assert is_harmless(out), words
    assert EVIL in {job["task"] for job in cli("jobs", "--json").json()["jobs"]}


def test_labels_of_metrics_are_one_line_each(bench, make_app):
    fill(bench)
    text = metrics.text_of(make_app())
    assert "superfetch_up 1" in text
    assert is_harmless(text)
    assert "evil" in text


def test_the_control_a_table_that_escapes_nothing_forges_a_line(bench, cli, monkeypatch):
    fill(bench)
    monkeypatch.setattr("celery_superfetch.cli.tables.printable", str)
    assert not is_harmless(cli("status", "--wide", code=None).out)


def test_no_line_in_a_worker_s_log_is_that_of_a_message(bench, worker, app, shop, db, ledger):
    """Titles, ids in the dead set, names of owners and of what Celery logs itself."""
    one = worker(pool="threads", options={"reap_interval": 1})
    app.send_task("shop.note", ("evil",), task_id=EVIL)
    app.send_task(EVIL, ("unknown",), task_id=EVIL + "2")
    app.send_task("shop.fail", ("fails",), task_id=EVIL + "3")
    app.send_task("celery_superfetch.announce", (), headers={"superfetch_dead_id": EVIL})
    bench.push("celery", b"no message: " + EVIL.encode(), payload(EVIL, "celery", task=EVIL))
    # Its error quotes its type, also in the traceback; and an operator's revoke names an id.
    strange = json.dumps(f"application/{EVIL}").encode()
    bench.push("celery", payload("odd", "celery").replace(b'"application/json"', strange))
    app.control.revoke(EVIL)
    # Before there are other workers: a job that this one cannot read would wait for them.
    eventually(lambda: one.log().count("ContentDisallowed: Refusing") >= 1)
    image = ProcessImage(**{**vars(ended_process()), "host": EVIL})
    for state in ("running", "hung"):
        dead = bench.owner(image, lists=["celery"], node=EVIL, state=state)
        bench.give(dead, "celery", [payload(state, "celery", task=EVIL)])
    shop.ran("mine")
    eventually(
        lambda: (
            one.log().count("declared dead (owner=") >= 1
            and " recovered, 0 moved to the dead set, " in one.log()
        )
    )
    eventually(lambda: one.log().count("evil") > 5)
    eventually(lambda: "flagged as revoked: evil" in one.log())
    names = ("received", "Job", "Worker", "dead", "Task")
    lines = [
        line for line in one.log().split("\n") if "evil" in line and any(map(line.count, names))
    ]
    assert len(lines) > 5
    for line in lines:
        assert line.isprintable(), line
    assert not [line for line in one.log().split("\n") if line.startswith(FORGED)]


def test_the_control_of_a_log_without_the_filter(caplog):
    logger = logging.getLogger("celery_superfetch.test_terminal")
    logger.warning("Job %s", EVIL)
    assert not is_harmless(caplog.text)
    caplog.clear()
    log_text.one_line_each(logger)
    logger.warning("Job %s: %s, %r", EVIL, ValueError(EVIL), Report(killed=EVIL))
    logger.warning(f"Job {EVIL}")
    assert is_harmless(caplog.text)
    try:
        raise ValueError(EVIL) from KeyError(EVIL)
    except ValueError:
        logger.exception("Job %s", EVIL)
    assert is_harmless(caplog.text)
    assert "direct cause" in caplog.text
    assert "ValueError: evil\\n" in caplog.text


@pytest.mark.parametrize("text", [EVIL, "\x1b]8;;http://evil\x07", "\ud800", "a\tb\vc"])
def test_what_is_shown_is_printable(text):
    assert arguments.printable(text).isprintable()
    assert arguments.printable("plain äöü 名") == "plain äöü 名"


def test_each_logger_of_the_package_has_one_line_for_a_message():
    package = Path(log_text.__file__).parents[1]
    loggers = {
        path.relative_to(package).as_posix(): line
        for path in package.rglob("*.py")
        for line in re.findall(r"^logger = .*", path.read_text(), re.M)
    }
    assert len(loggers) > 40
    assert [name for name, line in loggers.items() if "one_line_each(" not in line] == []
