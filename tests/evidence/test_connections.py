"""What a process has open on the broker: no more than a stock one, and each connection has a name.

Plans of managed services are sold by the number of connections, and some have twenty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import redis

from support.servers.connections import open_connections
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
