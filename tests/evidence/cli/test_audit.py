"""`celery superfetch audit`: each command that changes something has its entry."""

from __future__ import annotations

import getpass
import re
import signal
import socket
from typing import Any

import pytest

from celery_superfetch.model.humanize import command
from celery_superfetch.store.audit_list import AUDIT_MAX, AuditList
from support.forms import EVIL
from support.process import Process
from support.waiting import eventually
from support.workers.bench import payload
from support.workers.cli import superfetch_command
from support.workers.worker import process_env


@pytest.fixture
def entries(cli):
    def read() -> list[dict[str, Any]]:
        return cli("audit", "--json").json()["entries"]

    return read


def test_each_changing_command_is_on_the_list_with_its_author_and_outcome(cli, bench, entries):
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert cli("audit").out == "No change is on the audit list.\n"
    jobs = bench.killed(*(payload(n) for n in range(4)))
    bench.push("mail", payload("waits"))
    bench.owner(lists=["mail"])
    cli("dead", "retry", jobs[0].id)
    cli("dead", "retry", "--task", "shop.note", "--newer-than", "1h", "--to", "aside", "--yes")
    [left] = bench.killed(payload("left"))
    cli("dead", "delete", left.id, "nope", "--yes", code=1)
    bench.killed(payload("more"))
    cli("dead", "purge", "--yes")
    cli("queue", "pause", "mail")
    cli("queue", "pause", "mail")
    cli("queue", "resume", "mail")
    cli("queue", "resume", "mail", code=1)
    cli("queue", "forget", "nowhere", code=1)
    cli("workers", "stop", "nobody@host", "--yes", code=1)
    cli("migrate")
    cli("rollback", code=1)
    found = entries()
    assert {row["by"] for row in found} == {me}
    rows = [(row["action"], row["subject"], row["state"], row["outcome"]) for row in found]
    assert rows[2:] == [
        (
            "workers stop",
            "nobody@host",
            "failed",
            f"no worker has the node name 'nobody@host': `{command()} workers` lists them",
        ),
        ("queue forget", "nowhere", "complete", "the queue was unknown"),
        ("queue resume", "mail", "complete", "it was not paused"),
        ("queue resume", "mail", "complete", "resumed"),
        ("queue pause", "mail", "complete", "it was paused already"),
        ("queue pause", "mail", "complete", "paused"),
        ("dead purge", "all", "complete", "deleted 1 job"),
        ("dead delete", f"id {left.id}", "complete", "deleted 1 of 1 job"),
        (
            "dead retry",
            "task shop.note, newer than 3600 s; to queue aside",
            "complete",
            "requeued 3 of 3 jobs",
        ),
        ("dead retry", f"id {jobs[0].id}", "complete", "requeued 1 of 1 job"),
    ]
    assert [row[0] for row in rows[:2]] == ["rollback", "migrate"]
    assert rows[0][2] == "failed"
    assert "nothing was moved" in rows[0][3]
    assert (found[-2]["total"], found[-2]["done"], found[-2]["failed"]) == (3, 3, 0)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", row["at"]) for row in found)


def test_what_only_reads_or_changes_nothing_is_not_on_the_list(cli, bench, entries):
    bench.killed(payload("a"))
    bench.push("mail", payload("waits"))
    for words in ("status", "jobs", "dead list", "reap --dry-run", "rollback --dry-run", "reap"):
        cli(*words.split())
    cli("dead", "retry", "--all", answer="n\n", code=1)
    cli("dead", "delete", "--task", "nobody", "--yes")
    assert entries() == []
    bench.dead_owner([payload("lost")])
    cli("reap")
    [row] = entries()
    assert row["action"] == "reap"
    assert "1 of 1 worker dead, 1 job recovered" in row["outcome"]


def test_the_table_pages_and_no_text_speaks_to_the_terminal(cli, bench):
    audit = AuditList(bench.database)
    for number in range(60):
        with audit.recording(EVIL, "queue pause", f"{number} {EVIL}") as record:
            record.end(EVIL)
    shown = cli("audit")
    assert "1 to 50 of 60, the newest first. More: --first 50." in shown.out
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out
    rest = cli("audit", "--first", "50", "--wide").out
    assert "51 to 60 of 60, the newest first.\n" in rest
    assert cli("audit", "--first", "50", "--json").json()["next"] is None
    assert AUDIT_MAX == 1000


def test_an_interrupted_and_a_killed_command_say_what_was_done(
    bench, env, keep, fresh_server, tmp_path, entries, cli
):
    results = fresh_server()
    bench.killed(*(payload(n) for n in range(150)))
    settings = {"result_url": results.url()}
    command = superfetch_command("dead", "retry", "--all", "--yes")
    for number, signal_ in enumerate((signal.SIGINT, signal.SIGKILL)):
        results.pause()
        log = tmp_path / f"retry-{number}.log"
        process = keep(Process(command, log=log, env=process_env(env(**settings))))
        eventually(lambda n=number: len(entries()) == n + 1, every=0.2)
        process.signal(signal_)
        process.wait_exit()
        results.resume()
    killed, interrupted = entries()
    assert (interrupted["state"], interrupted["outcome"]) == (
        "interrupted",
        "interrupted with Ctrl-C",
    )
    assert (killed["state"], killed["total"]) == ("under way", 150)
    for key in bench.client.scan_iter(bench.keys.lock("retry:*")):
        bench.client.delete(key)  # as after a minute
    assert cli("dead", "retry", "--all", "--yes", **settings).out.startswith("Requeued ")
    assert bench.client.llen("mail") == 150, "each job is in one place, and once"
    assert not len(bench.dead_set)
