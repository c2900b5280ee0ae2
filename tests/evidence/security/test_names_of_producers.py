"""What a producer chooses, names and sizes: it takes neither places nor memory from others."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest

from support.waiting import eventually
from support.workers.bench import payload

MIB = 2**20

JOBS = 300


def named(client: Any) -> set[str]:
    """Tasks that the counters name."""
    rows = [row.decode().split("\t") for row in client.hkeys("superfetch:stats")]
    return {row[2] for row in rows if len(row) == 3} - {""}


@pytest.mark.parametrize("without", ["", "registered_names"], ids=["with", "control"])
def test_counters_name_registered_tasks_alone(worker, app, db, client, without):
    """2,001 names of others were enough, and none of the app's own came in any more."""
    worker(concurrency=2, env={"WITHOUT": without})
    sent = [payload(n, "celery", f"nobody.knows{n}") for n in range(JOBS)]
    client.lpush("celery", *sent)
    eventually(lambda: db.stat("killed") == JOBS and db.settled())
    app.send_task("shop.kill_child", ("registered",))
    eventually(lambda: "shop.kill_child" in named(client), 30)
    strange = {name for name in named(client) if name.startswith("nobody")}
    assert len(strange) == (JOBS if without else 0)


def held(client: Any) -> int:
    """Jobs that wait in the private list that has most of them."""
    return max((client.hlen(key) // 2 for key in client.keys("superfetch:private:*")), default=0)


def test_large_jobs_of_unknown_tasks_do_not_fill_the_memory_of_a_worker(worker, db, client):
    """They take no place in its prefetch, and wait on the server."""
    worker(app="hung", name="one")
    other = worker(name="two", options={"heartbeat_interval": 300, "owner_ttl": 3600})
    # Both have told which tasks they know: else nobody is asked to take these jobs.
    eventually(lambda: sum(bool(db.fact(owner, "tasks")) for owner in db.owners()) == 2)
    eventually(lambda: ["celery" in db.fact(o, "lists") for o in db.owners()] == [True] * 2)
    other.freeze()
    client.set("superfetch:has_history", 1)
    for number in range(100):
        raw = payload(number, "celery", "shop.build", pad="x" * MIB)
        # Each waits for longer than this test.
        client.hset(f"superfetch:history:{sha1(raw).hexdigest()}", "requeues", 35)
        client.lpush("celery", raw)
    eventually(lambda: client.zcard("superfetch:parked:celery") > 90, 60)
    eventually(lambda: held(client) < 10)
