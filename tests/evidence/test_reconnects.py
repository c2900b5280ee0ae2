"""Losing the connection again and again costs nothing that is not given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from celery import Celery

from support.servers.database import Database
from support.servers.faults import kill_connections
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import ExternalServer, Server
from support.shown import STARTED
from support.waiting import eventually
from support.workers.fleet import Fleet
from support.workers.worker import Worker

#: One with an event loop, one without. (Threads and solo run the first one's code.)
POOLS = {"prefork": 1, "gevent": 2}

LOSSES = 50

#: So many of the first count as "the first": by then whatever is kept has been made.
FIRST = 5

#: What one worker may have more of by chance: a pool of connections opens one more when two
#: threads want one at the same time, gevent's own pool of threads likewise; Celery's timers on
#: gevent run while the connection they use is replaced. A leak would be 45.
CHANCE = {"threads": 1, "files": 3, "timers": 3, "objects": 2}

Resources = dict[str, dict[str, int]]


@pytest.fixture
def books(server: Server | ExternalServer) -> Iterator[Ledger]:
    ledger = Ledger(server.url(LEDGER_DB))
    ledger.clear()
    yield ledger
    ledger.close()


def lose_connections(fleet: Fleet, times: int) -> None:
    """Each time, every worker must have worked again before the next."""
    note = fleet.app.tasks["shop.note"]
    eyes = fleet.server.client()
    for _ in range(times):
        kill_connections(eyes)
        fleet.ledger.clear()
        for pool in fleet.pools:
            note.apply_async((pool,), queue=pool)
        eventually(lambda: set(fleet.ledger.finishes()) == set(fleet.pools), every=0.01)


def resources(fleet: Fleet) -> Resources:
    """What each worker has of everything; all of them answer."""
    return eventually(lambda: fleet.answers("resources"), message="every worker says what it has")


def most(rows: list[Resources]) -> Resources:
    """The most there was of everything."""
    return {
        pool: {what: max(row[pool][what] for row in rows) for what in rows[0][pool]}
        for pool in rows[0]
    }


def grown(before: Resources, now: Resources) -> dict[str, dict[str, str]]:
    """What there is more of than before."""
    return {
        pool: {
            what: f"{before[pool][what]} -> {count}"
            for what, count in row.items()
            if count > before[pool][what] + CHANCE[what]
        }
        for pool, row in now.items()
    }


def test_fifty_reconnects_leave_nothing_behind(
    request: pytest.FixtureRequest, server: Server, books: Ledger, tmp_path: Path
) -> None:
    with Fleet(server.url(), books, tmp_path, pools=POOLS, app="watched") as fleet:
        request.node.stash[STARTED] = list(fleet.workers.values())
        rows = []
        for _ in range(FIRST):
            lose_connections(fleet, 1)
            rows.append(resources(fleet))
        lose_connections(fleet, LOSSES - FIRST - 1)
        resources(fleet)  # drops cancelled timers, but for the consumer's own notes of them ...
        lose_connections(fleet, 1)  # ... which it makes anew

        def at_rest() -> bool:  # a blocking read that is just being opened is no leak
            more = grown(most(rows), resources(fleet))
            assert not any(more.values()), more
            return True

        eventually(at_rest, 15)


def test_the_control_a_leak_of_each_kind_is_seen(
    request: pytest.FixtureRequest, server: Server, books: Ledger, tmp_path: Path
) -> None:
    leaky = {"app": "watched", "env": {"LEAK": "1"}}
    with Fleet(server.url(), books, tmp_path, pools=POOLS, **leaky) as fleet:
        request.node.stash[STARTED] = list(fleet.workers.values())
        lose_connections(fleet, 1)
        first = resources(fleet)
        # What is there by chance may be so at the first look, and gone at the last.
        lose_connections(fleet, 2 * max(CHANCE.values()) + 1)

        def seen() -> bool:
            more = grown(first, resources(fleet))
            assert all(set(row) == set(CHANCE) for row in more.values()), more
            return True

        eventually(seen, 15)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_what_waits_for_its_time_is_scheduled_once_after_a_lost_connection(
    worker: Callable[..., Worker],
    shop: SimpleNamespace,
    app: Celery,
    client: redis.Redis,
    db: Database,
    ledger: Ledger,
    pool: str,
) -> None:
    """C3. Celery keeps those of the lost connection, too, until their time comes: 30,000 of them
    cost each run of the garbage collector half a second, in which the heart is not heard. What is
    parked is in no worker's memory, before nor after."""
    names = ["one", "two", "three"]
    for name in names:
        shop.note.apply_async((name,), countdown=3600)
    worker(pool=pool, concurrency=1)

    def scheduled() -> list[str]:
        answers = app.control.inspect(limit=1).scheduled()
        assert answers, "it answers"
        return [row["request"]["args"][0] for rows in answers.values() for row in rows]

    eventually(lambda: sorted(db.parked()) == sorted(names))
    kill_connections(client)
    shop.note.delay("back")
    eventually(lambda: "back" in ledger.finishes())
    eventually(lambda: not scheduled())
    assert sorted(db.parked()) == sorted(names)
