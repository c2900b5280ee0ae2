"""Thousands of queues, each with a list for each of four priorities."""

from __future__ import annotations

from typing import Any

import redis
from celery import Celery

from support.servers.faults import kill_connections
from support.servers.ledger import Ledger
from support.waiting import always, eventually
from support.workers.bench import Bench, payload

QUEUES = [f"queue-{number}" for number in range(2100)]
AFTER = 20  # jobs that come then
BUSY = {"reap_interval": 1, "heartbeat_interval": 0.5}


def a_connection_is_cut(
    worker: Any, app: Celery, client: redis.Redis, ledger: Ledger, without: str = ""
) -> None:
    """A worker of all these queues loses its connections, and then jobs come."""
    worker(pool="threads", queues=QUEUES, options=BUSY, env={"WITHOUT": without})
    app.send_task("shop.note", ("before",), queue=QUEUES[-1])
    eventually(lambda: "before" in ledger.finishes())
    kill_connections(client)
    for number, queue in enumerate(QUEUES[:: len(QUEUES) // AFTER]):
        app.send_task("shop.note", (f"after-{number}",), queue=queue, priority=number % 10)


def test_a_worker_of_8400_lists_goes_on_after_a_cut_connection(worker, app, client, ledger):
    a_connection_is_cut(worker, app, client, ledger)
    # Another worker of as many lists is dead: it is found, and its job runs as well.
    dead = Bench(client).dead_owner([payload("orphan")], "queue-7", lists=QUEUES)
    names = {f"after-{number}" for number in range(AFTER)}
    eventually(lambda: names <= ledger.finishes().keys(), within=60)
    eventually(lambda: not client.exists(f"superfetch:private:{dead.owner}"), within=60)
    eventually(lambda: not client.keys("superfetch:private:*"), message="all were acked")
    runs = ledger.runs()
    assert {name: runs[name] for name in names} == dict.fromkeys(names, 1)


def test_the_control_claims_nothing_any_more(worker, app, client, ledger):
    """Lists of any length go into one command, which Lua refuses."""
    a_connection_is_cut(worker, app, client, ledger, without="parts")
    always(lambda: ledger.starts().keys() <= {"before"}, during=5)
