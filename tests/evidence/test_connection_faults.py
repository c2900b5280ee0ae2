"""Connections break while jobs run: every job runs once, and every pool goes on by itself.

One fleet serves all tests here: each begins where the one before came to rest.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import pytest

from celery_superfetch.store.redis.scripts import source
from support.process import Process
from support.servers.faults import (
    command,
    kill_connections,
    killed_and_restarted,
    script,
    standstill,
)
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.proxy import Words
from support.servers.server import ExternalServer, Server
from support.waiting import always, eventually
from support.workers.fleet import SOCKET_TIMEOUT, Fleet

#: Longer than what a worker waits for a reply, and what heartbeats of others may miss.
STANDSTILL = 10.0


@pytest.fixture(scope="module")
def fleets(
    server: Server | ExternalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Fleet]]:
    """The module's fleet; another one when a test left something behind in it."""
    books = Ledger(server.url(LEDGER_DB))
    with contextlib.ExitStack() as stack:
        last: list[Fleet] = []

        def give() -> Fleet:
            books.clear()
            if not last or last[-1].left():
                stack.close()
                fleet = Fleet(server.url(), books, tmp_path_factory.mktemp("fleet"))
                last.append(stack.enter_context(fleet))
            return last[-1]

        yield give
    books.close()


@pytest.fixture
def fleet(remember: Callable[[Process], None], fleets: Callable[[], Fleet]) -> Fleet:
    found = fleets()
    for worker in found.workers.values():
        remember(worker)
    return found


def test_connections_are_cut_once_and_ten_times_in_a_row(fleet):
    with fleet.load("cut") as load:
        load.wait_progress()
        assert kill_connections(fleet.server.client()) > 10
        load.wait_progress()
        for _ in range(5):
            fleet.proxy.cut()
            load.wait_progress(1)
            kill_connections(fleet.server.client())
            load.wait_progress(1)
        fleet.check(load)


def test_the_server_is_restarted_and_killed(fleet):
    with fleet.load("restart") as load:
        load.wait_progress()
        fleet.server.restart()
        load.wait_progress()
        killed_and_restarted(fleet.server)
        load.wait_progress()
        fleet.check(load)


def test_the_server_stands_still(fleet):
    with fleet.load("still") as load:
        load.wait_progress()
        with standstill(fleet.server):
            everybody = fleet.workers.values()
            always(lambda: all(w.alive() for w in everybody), during=STANDSTILL)
        load.wait_progress()
        fleet.check(load)


def test_a_firewall_forgets_every_connection(fleet):
    with fleet.load("hole") as load:
        load.wait_progress()
        assert fleet.proxy.black_hole() > 10
        load.wait_progress(within=SOCKET_TIMEOUT * 10)
        # Remote control has connections of kombu's, which finds out later, or (gevent) never.
        fleet.check(load, answers=False)


def of(pool: str, matches: Callable[[Words], bool]) -> Callable[[Words], bool]:
    """What `matches`, from one worker: its keys tell whose it is."""
    return lambda words: matches(words) and any(pool.encode() in word for word in words)


def test_single_replies_and_commands_are_lost(fleet):
    kinds = {"claim": script(source("claim")), "ack": command("HDEL")}
    kinds["blocking read"] = command("BLMOVE")
    # Light enough for everybody to be idle now and then: only then do they block.
    with fleet.load("reply", every=0.06) as load:
        load.wait_progress()
        for (what, matches), reply_lost in itertools.product(kinds.items(), (True, False)):
            cuts = {
                pool: fleet.proxy.cut_at(of(pool, matches), reply_lost=reply_lost)
                for pool in fleet.pools
            }

            for pool, done in cuts.items():
                eventually(done.is_set, message=f"{pool} sends a {what}")
            load.wait_progress(1)
        fleet.check(load)


# -- the controls


def test_stock_runs_a_job_twice_when_its_connection_is_cut(make_fleet):
    fleet = make_fleet(pools={"prefork": 2}, superfetch=False)
    with fleet.load("stock") as load:
        load.wait_progress()
        kill_connections(fleet.server.client())
        eventually(lambda: fleet.ledger.runs()["stock-prefork-held"] == 2)


def without(safety: str, make_fleet: Callable[..., Fleet]) -> Fleet:
    return make_fleet(pools={"threads": 2}, env={"WITHOUT": safety})


def test_a_lost_claim_that_nobody_looks_for_is_stranded(make_fleet):
    fleet = without("lost_claims", make_fleet)
    done = fleet.proxy.cut_at(of("threads", command("BLMOVE")), nth=8, reply_lost=True)
    note = fleet.app.tasks["shop.note"]
    names = [f"job-{n}" for n in range(100)]
    for name in names:
        note.apply_async((name,), queue="threads")
        eventually(lambda name=name: name in fleet.ledger.finishes() or done.is_set())
        if done.is_set():
            break
    note.apply_async(("next",), queue="threads")
    eventually(lambda: fleet.ledger.finishes().get("next"))
    always(lambda: name not in fleet.ledger.starts(), during=1)
    assert fleet.db.owner_of(name)


def test_an_ack_that_is_not_sent_again_leaves_its_job_in_flight(make_fleet):
    fleet = without("lost_acks", make_fleet)
    note = fleet.app.tasks["shop.note"]
    done = fleet.proxy.cut_at(command("HDEL"), reply_lost=False)
    for name in ("job", "next"):
        note.apply_async((name,), queue="threads")
        eventually(lambda name=name: fleet.ledger.finishes().get(name))
        eventually(done.is_set)
    always(lambda: fleet.db.owner_of("job"), during=1)


def test_what_runs_and_is_given_back_runs_twice(make_fleet):
    fleet = without("running", make_fleet)
    fleet.app.tasks["shop.hold"].apply_async(("job",), queue="threads")
    eventually(lambda: fleet.ledger.starts().get("job"))
    kill_connections(fleet.server.client())
    eventually(lambda: fleet.ledger.runs()["job"] == 2)
