"""Connections break while jobs run: every job runs once, and every pool goes on by itself.

One fleet serves all tests here: each begins where the one before came to rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from celery_superfetch.scripts import source
from harness.faults import (
    command,
    kill_connections,
    killed_and_restarted,
    script,
    standstill,
)
from harness.ledger import LEDGER_DB, Ledger
from harness.proxy import Words
from harness.server import ExternalServer, Server
from harness.waiting import always, eventually
from parts.fleet import SOCKET_TIMEOUT, Fleet
from parts.shown import STARTED

pytest.importorskip("gevent")

#: Longer than what a worker waits for a reply, and what heartbeats of others may miss.
STANDSTILL = 10.0


@pytest.fixture(scope="module")
def running(
    server: Server | ExternalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    books = Ledger(server.url(LEDGER_DB))
    with Fleet(server.url(), books, tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet
    books.close()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, running: Fleet) -> Fleet:
    running.ledger.clear()
    request.node.stash[STARTED] = list(running.workers.values())
    assert running.at_rest(), "an earlier test left something behind"
    return running


def test_connections_are_cut_once_and_ten_times_in_a_row(fleet: Fleet) -> None:
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


def test_the_server_is_restarted_and_killed(fleet: Fleet) -> None:
    with fleet.load("restart") as load:
        load.wait_progress()
        fleet.server.restart()
        load.wait_progress()
        killed_and_restarted(fleet.server)
        load.wait_progress()
        fleet.check(load)


def test_the_server_stands_still(fleet: Fleet) -> None:
    with fleet.load("still") as load:
        load.wait_progress()
        with standstill(fleet.server):
            everybody = fleet.workers.values()
            always(lambda: all(w.alive() for w in everybody), during=STANDSTILL)
        load.wait_progress()
        fleet.check(load)


def test_a_firewall_forgets_every_connection(fleet: Fleet) -> None:
    with fleet.load("hole") as load:
        load.wait_progress()
        assert fleet.proxy.black_hole() > 10
        load.wait_progress(within=SOCKET_TIMEOUT * 10)
        fleet.check(load)


def of(pool: str, matches: Callable[[Words], bool]) -> Callable[[Words], bool]:
    """What `matches`, from one worker: its keys tell whose it is."""
    return lambda words: matches(words) and any(pool.encode() in word for word in words)


def test_single_replies_and_commands_are_lost(fleet: Fleet) -> None:
    with fleet.load("reply") as load:
        load.wait_progress()
        kinds = (script(source("claim")), script(source("ack")), command("BLMOVE"))
        for what, reply_lost in itertools.product(kinds, (True, False)):
            cuts = [
                fleet.proxy.cut_at(of(pool, what), reply_lost=reply_lost) for pool in fleet.pools
            ]
            eventually(lambda cuts=cuts: all(cut.is_set() for cut in cuts))
            load.wait_progress()
        fleet.check(load)
