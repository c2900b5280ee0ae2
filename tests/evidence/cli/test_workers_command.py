"""`celery superfetch workers`: who they are, how they are, and how one is stopped."""

from __future__ import annotations

import re
import socket
import time
from typing import Any

import pytest

from support.waiting import eventually
from support.workers.bench import elsewhere, payload


def rows(cli: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli("workers", "--json").json()["workers"]
    return found


@pytest.mark.parametrize(("pool", "concurrency"), [("prefork", 2), ("threads", 3)])
def test_a_real_worker_says_what_it_is(cli, worker, pool, concurrency):
    one = worker(pool=pool, concurrency=concurrency, options={"heartbeat_interval": 0.5})
    [row] = eventually(lambda: [row for row in rows(cli) if row["memory"]], every=0.2)
    assert (row["host"], row["pid"]) == (socket.gethostname(), one.pid)
    assert (row["pool_name"], row["slots"], row["state"]) == (pool, concurrency, "running")
    assert row["memory"] % 2**24 == 0
    assert 16 * 2**20 <= row["memory"] < 2**30
    assert "celery" in row["queues"]
    out = cli("workers", "--wide").out
    assert re.search(rf"{one.name}@\S+ +running .* {pool}, {concurrency} +\d+ MB ", out)


def test_a_worker_that_is_stopped_finishes_what_runs_and_requeues_the_rest(
    cli, worker, shop, ledger, db
):
    one = worker(concurrency=1, conf={"worker_prefetch_multiplier": 2})
    shop.hold.delay("runs")
    eventually(lambda: ledger.starts().get("runs"))
    shop.note.delay("waits")
    node = f"{one.name}@{socket.gethostname()}"
    assert cli("workers", "stop", node, answer="n\n", code=1).err.count("Aborted!") == 1
    assert one.alive()
    said = cli("workers", "stop", node, answer="y\n").out
    assert f"Told worker {node} to stop. It finishes 1 running job and ends." in said
    eventually(lambda: db.waiting() == ["waits"], message="it is requeued at once")
    assert one.alive(), "it waits for the job that runs"
    again = cli("workers", "stop", node, "--yes", code=1).err
    assert "it is stopping already" in again or "did not answer a ping" in again
    ledger.release()
    one.wait_exit()
    assert ledger.runs() == {"runs": 1}
    eventually(lambda: rows(cli) == [])


@pytest.mark.parametrize(
    ("facts", "process", "age_s", "why"),
    [
        ({"node": ""}, None, 0, "no worker has the node name"),
        ({"state": "stopping"}, None, 0, "it is stopping already"),
        ({"state": "hung"}, None, 0, "it is hung: its event loop obeys no command. Kill it: pid"),
        ({}, elsewhere("far"), 60, "it missed its heartbeats"),
        ({}, None, 0, "did not answer a ping within 1 s"),
    ],
    ids=["no name", "stopping", "hung", "silent", "no answer"],
)
def test_a_worker_that_cannot_obey_is_not_told(cli, bench, facts, process, age_s, why):
    owner = bench.owner(process, **{"node": "w1@host", **facts})
    if age_s:
        bench.age(owner, age_s * 1000)
    begun = time.monotonic()
    err = cli("workers", "stop", "w1@host", "--yes", code=1).err
    assert why in err
    assert time.monotonic() - begun < 30


def test_two_workers_of_one_name_are_not_stopped_together(cli, bench):
    for host in ("a", "b"):
        bench.owner(elsewhere(host), node="celery@web")
    err = cli("workers", "stop", "celery@web", "--yes", code=1).err
    assert "2 workers have the node name celery@web" in err


@pytest.mark.parametrize(
    ("facts", "age_s", "why"),
    [
        ({"state": "hung"}, 0, "Of the others: it is hung: its event loop obeys no command."),
        ({}, 30, "Of the others: it missed its heartbeats"),
        ({"state": "stopping"}, 0, None),
    ],
    ids=["hung", "silent", "stopping"],
)
def test_a_worker_that_cannot_obey_now_counts_if_it_has_the_same_name(
    cli, bench, facts, age_s, why
):
    """It obeys when it goes on: a silent worker may be frozen. One that is stopping ends anyway."""
    bench.owner(elsewhere("a"), node="celery@web")
    other = bench.owner(elsewhere("b"), node="celery@web", **facts)
    bench.age(other, age_s * 1000)
    err = cli("workers", "stop", "celery@web", "--yes", code=1).err
    if why is None:
        assert "did not answer a ping" in err, "it would have been told"
    else:
        assert "2 workers have the node name celery@web" in err
        assert "SIGTERM" in err
        assert "host a" in err
        assert why in err


def test_each_worker_of_a_name_that_cannot_be_stopped_has_its_reason(cli, bench):
    bench.owner(elsewhere("a"), node="celery@web", state="stopping")
    bench.owner(elsewhere("b"), node="celery@web", state="hung")
    err = cli("workers", "stop", "celery@web", "--yes", code=1).err
    assert "it is stopping already" in err
    assert "it is hung" in err


def test_those_in_need_come_first_with_the_reason(cli, bench):
    bench.owner(elsewhere("a"), node="a@well", lists=["mail", "slow"], unconsumed=("slow",))
    silent = bench.owner(elsewhere("b"), node="b@silent")
    bench.give(silent, "mail", [payload("x")])
    bench.age(silent, 60_000)
    first, second = rows(cli)
    assert (first["node"], first["word"], first["reserved"]) == ("b@silent", "silent", 1)
    assert (second["node"], second["queues"]) == ("a@well", ["mail"])
    assert re.search(r"no heartbeat for 6\d s", cli("workers").out)
