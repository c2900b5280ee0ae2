"""Floods: what a producer can make the dead set drop, and keep, by messages that no worker runs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from celery_superfetch.store import dead_caps
from celery_superfetch.store.dead_caps import JUNK_BYTES, JUNK_LIMIT
from support.waiting import eventually
from support.workers.bench import Bench, payload, trimmed

MIB = 2**20

#: A limit that is soon reached, and passes that log within seconds.
SMALL = {"dead_limit": 20, "strike_limit": 1, "reap_interval": 0.25}

#: Messages that no worker runs: of each kind, what makes one of a number.
UNRUN = {
    "unknown task": lambda n: payload(f"u{n}", "celery", "nobody.knows"),
    "cannot be received": lambda n: payload(f"r{n}", "celery", timelimit=5),
    "cannot be decoded": lambda n: payload(f"d{n}", "celery").replace(b"/json", b"/x-strange"),
    "forged strikes": lambda n: payload(
        f"s{n}", "celery", "nobody.knows", superfetch_strikes={"strikes": 99, "since": 4e9}
    ),
}
EACH = 20


def flood(client: Any) -> int:
    """Publish more than the limit of each kind of message that never runs; return how many."""
    messages = [make(number) for number in range(EACH) for make in UNRUN.values()]
    client.lpush("celery", *messages)
    return len(messages)


def start(worker: Any, app: Any, db: Any, **settings: Any) -> tuple[Any, str]:
    """Start a worker, and have one real job in its dead set before the flood; return its id."""
    one = worker(options=SMALL, concurrency=2, **settings)
    sent = app.send_task("shop.kill_child", ("real",))
    [dead] = eventually(db.dead)
    assert dead["task_id"] == sent.id
    return one, sent.id


def dropped(log: str) -> int:
    """How many jobs that never ran were let go, as the lines of the log have it."""
    return sum(map(int, re.findall(r"is flooded: (\d+) jobs that never ran", log)))


def test_a_flood_of_what_never_ran_leaves_the_real_jobs_and_is_told(
    worker, app, ledger, db, client, cli
):
    one, real = start(worker, app, db)
    sent = flood(client)
    eventually(lambda: client.zcard("superfetch:dead:never_ran:shop") == 20 and db.settled(), 60)
    tasks = [record["task"] for record in db.dead()]
    assert tasks.count("shop.kill_child") == 1, "the real job is there"
    assert len(tasks) == 21
    assert db.stat("dead_dropped") == sent - 20
    eventually(lambda: dropped(one.log()) == sent - 20, message="the log has each one, once")
    found = json.loads(cli("status", "--json", options=SMALL).out)["findings"]
    [finding] = [row for row in found if row["code"] == "dead-set-flooded"]
    assert "20 of at most 20 jobs that never ran" in finding["text"]
    assert "the task 'nobody.knows'" in finding["text"] or "the reason" in finding["text"]
    assert "Requeued" in cli("dead", "retry", real, "--to", "aside", options=SMALL).out
    app.send_task("shop.note", ("behind",))
    eventually(lambda: ledger.runs().get("behind") == 1)
    assert one.alive()


def test_the_control_under_one_cap_they_push_the_real_job_out(worker, app, db, client):
    start(worker, app, db, env={"WITHOUT": "caps_of_their_own"})
    flood(client)
    eventually(lambda: db.stat("dead_dropped") > EACH and db.settled(), 60)
    assert "shop.kill_child" not in [record["task"] for record in db.dead()]


def test_of_what_is_too_large_the_head_is_kept(worker, app, ledger, db, client, cli, own):
    """20 MB of junk kept 126 MB: each control character had six bytes."""
    one = worker(options=SMALL)
    junk, message = (
        b"\0" * (20 * MIB),
        payload("large", "celery", "nobody.knows", pad="x" * 20 * MIB),
    )
    whole = payload("whole", "celery", "nobody.knows", pad="x" * 2 * MIB)
    client.lpush("celery", junk, message, whole)
    eventually(lambda: len(db.dead()) == 3)
    records = {record["task_id"]: record for record in db.dead()}
    for task_id, size in ((None, len(junk)), ("large", len(message))):
        assert records[task_id]["whole_bytes"] == size
        assert len(json.dumps(records[task_id])) < 10_000
    assert records["whole"]["whole_bytes"] == 0, "it can run when a worker knows its task"
    assert int(client.hget("superfetch:dead:bytes", "superfetch:dead:junk")) < 10_000
    assert "cannot be retried" in cli("dead", "retry", "large", code=1, options=SMALL).err
    assert "were kept, of 20,9" in cli("dead", "show", "large", options=SMALL).out
    assert "Requeued" in cli("dead", "retry", "whole", "--to", "aside", options=SMALL).out
    assert client.rpop("aside") == whole, "byte for byte"
    assert one.alive()


@pytest.mark.parametrize("byte", [b"\0", b"\xff", "\u00e9".encode(), b"x"], ids=repr)
def test_no_record_is_much_longer_than_its_message(bench, byte):
    """Base64 where that is shorter, text elsewhere."""
    size = 300_000 // len(byte)
    [job] = bench.killed(byte * size)
    record = bench.client.hget(bench.keys.dead_jobs, job.id)
    assert len(record) < 1.4 * len(byte) * size + 1000
    assert job.payload == byte * size
    assert (job.record()["encoding"] == "utf-8") == (byte == b"x")


def never_ran(bench: Bench, *payloads: bytes) -> None:
    for job in bench.give("h|1|n", "mail", payloads):
        call = bench.dead_set.kill_call(bench.recovery(job, never_ran=True), marked=False)
        assert bench.run(call)[0] == b"ok"


def test_the_bytes_of_what_never_ran_are_bounded(bench, monkeypatch):
    monkeypatch.setattr(dead_caps, "NEVER_RAN_BYTES", MIB)
    [real] = bench.killed(payload("real", pad="x" * 2 * MIB))
    never_ran(bench, *(payload(f"small {n}") for n in range(50)))
    never_ran(bench, *(payload(n, pad="x" * 300_000) for n in range(10)))
    ran, unrun, junk = bench.dead_set.usage()
    assert (ran.jobs, unrun.jobs, junk.jobs) == (1, 3, 0)
    assert ran.bytes > 2 * MIB > MIB > unrun.bytes > 900_000
    stored = sum(map(len, bench.client.hvals(bench.keys.dead_jobs)))
    assert stored == ran.bytes + unrun.bytes, "the sum is that of the records"
    assert [row.surplus for row in bench.dead_set.trim()] == [0, 57, 0]
    monkeypatch.setattr(dead_caps, "NEVER_RAN_BYTES", MIB // 2)
    assert trimmed(bench.dead_set) == (0, 2)
    assert bench.dead_set.get(real.id) == real
    bench.dead_set.purge()
    assert not bench.client.exists(bench.keys.dead_bytes)


def test_junk_is_bounded_in_number_and_in_bytes(bench):
    bench.killed(payload("real"))
    bench.killed(*(b"%03d" % n + b"\xff" * 600_000 for n in range(30)))
    ran, _, junk = bench.dead_set.usage()
    assert (ran.jobs, junk.cap.most_jobs) == (1, JUNK_LIMIT)
    assert JUNK_BYTES - 900_000 < junk.bytes <= JUNK_BYTES
