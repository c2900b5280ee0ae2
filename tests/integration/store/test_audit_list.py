"""The audit list: its entries, its cap, and changes whose entry cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from redis.exceptions import ResponseError

from celery_superfetch.errors import BadQueue
from celery_superfetch.store import audit_list
from celery_superfetch.store.audit_list import (
    AUDIT_MAX,
    AUTHOR_MAX_CHARS,
    CHANGE_FAILED,
    COMPLETE,
    INTERRUPTED,
    OUTCOME_MAX_CHARS,
    SUBJECT_MAX_CHARS,
    UNDER_WAY,
    AuditEntry,
    AuditList,
)
from support.workers.bench import Bench


@pytest.fixture
def audit(bench) -> AuditList:
    return AuditList(bench.database)


def test_an_entry_is_there_before_the_change_and_has_its_outcome_after_it(audit, bench):
    before = bench.database.server_time()
    with audit.recording("ann", "dead retry", "task shop.note", 3) as record:
        [entry] = audit.newest(0, 9)
        assert (entry.by, entry.action, entry.subject) == ("ann", "dead retry", "task shop.note")
        assert (entry.total, entry.done, entry.state) == (3, 0, UNDER_WAY)
        assert before <= entry.at <= bench.database.server_time()
        record.progress(1, 1)
        [entry] = audit.newest(0, 9)
        assert (entry.done, entry.failed, entry.dealt_with) == (1, 1, 2)
        record.end("requeued 2 of 3 jobs", 2, 1)
    [entry] = audit.newest(0, 9)
    assert (entry.state, entry.outcome) == (COMPLETE, "requeued 2 of 3 jobs")
    assert (entry.done, entry.failed) == (2, 1)
    assert audit.get(entry.id) == entry
    assert audit.get("nobody") is None


@pytest.mark.parametrize(
    ("error", "state", "outcome"),
    [
        (BadQueue("no such queue"), CHANGE_FAILED, "no such queue"),
        (ResponseError("OOM"), CHANGE_FAILED, "OOM"),
        (ValueError("S3CRET"), CHANGE_FAILED, "ValueError"),
        (KeyboardInterrupt(), INTERRUPTED, "interrupted with Ctrl-C"),
    ],
)
def test_a_change_that_fails_raises_its_error_and_has_its_entry(audit, error, state, outcome):
    def change() -> None:
        with audit.recording("ann", "queue pause", "mail") as record:
            record.progress(7)
            raise error

    with pytest.raises(type(error)):
        change()
    [entry] = audit.newest(0, 9)
    assert (entry.state, entry.outcome, entry.done) == (state, outcome, 7)


def test_a_killed_process_leaves_the_count_of_its_last_batch(audit, server):
    code = (
        "import os, redis\n"
        "from celery_superfetch.model.config import Config\n"
        "from celery_superfetch.store.audit_list import AuditList\n"
        "from celery_superfetch.store.database import Database\n"
        f"client = redis.Redis.from_url({server.url()!r})\n"
        "audit = AuditList(Database(client, Config(app_name='shop')))\n"
        "with audit.recording('ann', 'dead delete', 'all', 300) as record:\n"
        "    record.progress(100)\n"
        f"    os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False)
    assert ended.returncode == -signal.SIGKILL
    [entry] = audit.newest(0, 9)
    assert (entry.state, entry.total, entry.done) == (UNDER_WAY, 300, 100)


def test_the_oldest_entries_go_at_the_cap_and_its_memory_is_bounded(audit, bench, monkeypatch):
    key = bench.keys.audit

    def fill(text: str) -> float:
        bench.client.delete(key)
        with bench.client.pipeline(transaction=False) as pipe:
            for at in range(AUDIT_MAX + 5):
                entry = AuditEntry(
                    f"{at:013}-{at:08x}",
                    at,
                    text[:AUTHOR_MAX_CHARS] or "ann@web-1",
                    "dead retry",
                    text[:SUBJECT_MAX_CHARS] or "task shop.charge, reason timeout",
                    1000,
                    1000,
                    0,
                    COMPLETE,
                    text[:OUTCOME_MAX_CHARS] or "requeued 1000 of 1000 jobs",
                    at,
                )
                pipe.hset(key, entry.id, entry.dump())
            pipe.execute()
        audit.begin("newest", "queue pause", "mail")
        return int(bench.client.memory_usage(key, samples=0)) / 2**20

    usual, longest = fill(""), fill("\x00" * 1000)
    print(f"{usual:.2f} MB usually, {longest:.2f} MB at most")
    assert len(audit.ids()) == AUDIT_MAX
    assert audit.newest(0, 1)[0].by == "newest"
    assert audit.newest(AUDIT_MAX - 1, 9)[0].at == 6, "the oldest went"
    assert usual < 0.5
    assert longest < 5
    monkeypatch.setattr(audit_list, "AUDIT_MAX", 10**6)
    for _ in range(3):
        audit.begin("ann", "queue pause", "mail")
    assert len(audit.ids()) > AUDIT_MAX, "the control: without a cap it grows"


@pytest.mark.parametrize("row", ["", "1", "[]", '{"at": "x", "by": 7, "total": "y"}', "\xff"])
def test_an_entry_by_hand_is_an_entry(audit, bench, row):
    bench.client.hset(bench.keys.audit, "by hand", row)
    [entry] = audit.newest(0, 9)
    assert (entry.id, entry.at, entry.by, entry.done) == ("by hand", 0, "", 0)


def test_texts_that_no_encoding_has_are_stored(audit, bench):
    with audit.recording("half \udc80", "dead retry", "\x1b[2J" * 1000) as record:
        record.end("sch\u00f6n")
    [entry] = audit.newest(0, 9)
    assert entry.by == "half ?"
    assert len(entry.subject) == SUBJECT_MAX_CHARS
    assert entry.outcome == "sch\u00f6n"
    assert json.loads(bench.client.hget(bench.keys.audit, entry.id))["outcome"] == "sch\u00f6n"


@pytest.mark.parametrize("trouble", ["another type", "acl", "oom"])
def test_an_entry_that_cannot_be_written_is_logged_and_the_change_is_made(
    fresh_server, caplog, trouble
):
    """The control is the entry that is written once the trouble is over."""
    client = fresh_server().client()
    bench = Bench(client)
    audit = AuditList(bench.database)
    client.set("memory", "x" * 100_000)
    if trouble == "another type":
        client.set(bench.keys.audit, "a stranger's")
    elif trouble == "acl":
        client.execute_command("ACL", "SETUSER", "default", "-hset")
    else:
        client.config_set("maxmemory", 1)
    done = []
    with audit.recording("ann", "dead purge", "all", 2) as record:
        done.append(client.delete("memory"))
        record.progress(1)
        record.end("deleted 2 jobs", 2)
    assert done == [1], "the change was made"
    logged = [record.getMessage() for record in caplog.records]
    assert logged
    assert all("the change itself is not affected" in text for text in logged)
    assert "action=dead purge, by=ann, subject=all, outcome=deleted 2 jobs" in logged[-1]
    assert audit.newest(0, 9) == []
    client.execute_command("ACL", "SETUSER", "default", "+hset")
    client.config_set("maxmemory", 0)
    if trouble == "another type":
        client.delete(bench.keys.audit)
    with audit.recording("ann", "dead purge", "all", 2):
        pass
    assert [entry.state for entry in audit.newest(0, 9)] == [COMPLETE]
