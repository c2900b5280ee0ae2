"""Losing the connection again and again costs nothing that is not given back."""

from __future__ import annotations

import pytest

from support.servers.faults import kill_connections
from support.waiting import eventually
from support.workers.fleet import Fleet

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


def test_fifty_reconnects_leave_nothing_behind(make_fleet):
    fleet = make_fleet(pools=POOLS, app="watched")
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


def test_the_control_a_leak_of_each_kind_is_seen(make_fleet):
    fleet = make_fleet(pools=POOLS, app="watched", env={"LEAK": "1"})
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
def test_what_waits_for_its_time_when_the_connection_is_lost_runs_once(
    worker, shop, client, ledger, db, pool
):
    """Celery keeps those of the lost connection, too, until their time comes."""
    one = worker(pool=pool, concurrency=1)
    names = ["one", "two", "three"]
    for name in names:
        shop.note.apply_async((name,), countdown=4)  # from 5 s on they are parked
    eventually(lambda: one.log().count("received") == 3)
    kill_connections(client)
    eventually(lambda: one.log().count("received") == 6, message="they came anew")
    eventually(lambda: len(ledger.finishes()) == 3)
    eventually(lambda: not db.private_lists())
    assert ledger.runs() == dict.fromkeys(names, 1)
