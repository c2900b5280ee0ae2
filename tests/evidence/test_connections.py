"""What a process has open on the broker: no more than a stock one, and each connection has a name.

Plans of managed services are sold by the number of connections, and some have twenty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from support.servers.connections import (
    BLOCKING,
    BROADCASTS,
    CHANGES,
    COMMANDS,
    HEARTBEAT,
    open_connections,
)
from support.servers.server import Server
from support.waiting import eventually

#: beat looks for something to reap so often (s), and closes what it has opened for that.
TICK = 0.1
CONTROL = 2  # the database of those that go without the safety


@pytest.fixture
def own(fresh_server: Callable[..., Server]) -> Server:
    return fresh_server()


def test_beat_keeps_one_connection_however_often_it_ticks(own, beat):
    """The connections of each tick stayed open until the garbage collector ran."""
    conf = {"beat_schedule": {"note": {"task": "shop.note", "schedule": TICK, "args": ("n",)}}}
    databases = {0: "", CONTROL: "closing_clients"}
    beats = {
        db: beat(
            url=own.url(db),
            result_url=own.url(1),
            options={"reap_interval": TICK},
            conf=conf,
            env={"WITHOUT": without},
            loglevel="DEBUG",
        )
        for db, without in databases.items()
    }
    clients: dict[int, redis.Redis] = {db: own.client(db) for db in databases}
    seen: dict[int, list[Counter[str]]] = {db: [] for db in databases}

    def a_hundred_ticks() -> bool:
        for db, counts in seen.items():
            counts.append(open_connections(clients[db], db))
        return all(
            one.log().count("Sending due task superfetch-reap") >= 100 for one in beats.values()
        )

    eventually(a_hundred_ticks, 90, 0.1)
    most = {db: max(counts.total() for counts in some) for db, some in seen.items()}
    assert most[0] <= 4, "its own, and those of one tick"
    assert most[CONTROL] > 4
    eventually(lambda: open_connections(clients[0]).total() == 1, message="at rest")


#: Name of a worker -> how it is started, its connections but for those that send commands, and how
#: many there may be of these: what it uses at the same time, and no more for long.
QUIET = {"neighbours": False, "args": ["--without-heartbeat"]}
EXPECTED: dict[str, tuple[dict[str, Any], dict[str, int], int]] = {
    "prefork": ({}, {BLOCKING: 4, BROADCASTS: 2, HEARTBEAT: 1}, 3),
    "threads": ({"pool": "threads"}, {BLOCKING: 4, BROADCASTS: 2, HEARTBEAT: 1}, 3),
    "gevent": ({"pool": "gevent"}, {BLOCKING: 4, BROADCASTS: 2, HEARTBEAT: 1}, 3),
    "solo": ({"pool": "solo"}, {BLOCKING: 1, CHANGES: 1, BROADCASTS: 2, HEARTBEAT: 1}, 3),
    "quiet": (QUIET, {BLOCKING: 4, BROADCASTS: 1, HEARTBEAT: 1}, 1),
}


def test_an_idle_worker_has_no_more_connections_than_stock(own, worker):
    """Ten at most on each pool, as stock, and seven where nobody else is listened to. Before there
    were 17 to 19: a pool of each channel, one of the owner, and those that nobody used."""
    settings = {name: (one, {}) for name, (one, *_) in EXPECTED.items()}
    settings["control"] = {}, {"env": {"WITHOUT": "shared_pools"}}
    settings["stock"] = {}, {"superfetch": False}
    dbs = dict(zip(settings, (0, *range(2, 15)), strict=False))
    workers = {
        name: worker(
            url=own.url(dbs[name]),
            result_url=own.url(1),
            ready=False,
            **{"neighbours": True, "concurrency": 2, **one, **more},
        )
        for name, (one, more) in settings.items()
    }
    for one in workers.values():
        one.wait_ready()
    clients = {name: own.client(db) for name, db in dbs.items()}
    for name, (_, named, most) in EXPECTED.items():

        def is_at_rest(name: str = name, named: Any = named, most: int = most) -> bool:
            counts = open_connections(clients[name], dbs[name])
            commands = counts.pop(COMMANDS, 0)
            assert (dict(counts), commands <= most) == (named, True), (counts, commands)
            return True

        eventually(is_at_rest, 60, 0.2, message=f"{name} is at rest")
    stock = open_connections(clients["stock"], dbs["stock"])
    control = open_connections(clients["control"], dbs["control"])
    assert stock.total() == 10
    assert control.total() > 10


def test_twenty_connections_are_enough_for_a_worker_beat_a_producer_and_status(
    fresh_server, worker, beat, make_app, cli
):
    """A plan with twenty held one worker, and no producer; results are on the same server."""

    def begin(without: str) -> tuple[dict[str, str], Celery, Callable[[], int]]:
        server = fresh_server(maxclients=20)
        eyes = server.client()
        at = {"url": server.url(0), "result_url": server.url(1)}
        worker(**at, neighbours=True, env={"WITHOUT": without})
        beat(**at, env={"WITHOUT": without})
        return at, make_app(**at), lambda: int(eyes.info("stats")["rejected_connections"])

    at, app, rejected = begin("")
    results = [app.tasks["shop.add"].delay(n, 1) for n in range(20)]
    assert [result.get(timeout=60) for result in results] == [n + 1 for n in range(20)]
    cli("status", process=True, **at)
    assert rejected() == 0

    at, app, rejected = begin("shared_pools,closed_clients")
    with suppress(OperationalError, RedisError):  # whoever comes last is refused
        for n in range(20):
            app.tasks["shop.add"].apply_async((n, 1), retry=False)
    with suppress(AssertionError):
        cli("status", process=True, **at)
    eventually(lambda: rejected() > 0)
