"""What may happen to a fleet's connections: each is shorter than the limits of an owner's death."""

from __future__ import annotations

import random
from collections.abc import Callable

from celery_superfetch.store.redis.scripts import source
from support.servers.faults import (
    command,
    kill_connections,
    killed_and_restarted,
    script,
    standstill,
)
from support.waiting import always, eventually
from support.workers.fleet import SOCKET_TIMEOUT, Fleet

Trouble = Callable[[Fleet, random.Random], None]

#: Scripts and commands whose arrival, or whose reply, is lost; the last two are sent only now
#: and then: when something is given back, and when somebody is idle.
LOSABLE = ("claim", "HDEL", "heartbeat", "requeue", "BLMOVE")


def lasts(fleet: Fleet, seconds: float) -> None:
    everybody = fleet.workers.values()
    always(lambda: all(one.alive() for one in everybody), seconds, message="all workers live")


def connections_killed(fleet: Fleet, dice: random.Random) -> None:
    kill_connections(fleet.server.client())


def connections_reset(fleet: Fleet, dice: random.Random) -> None:
    fleet.proxy.cut()


def server_restarted(fleet: Fleet, dice: random.Random) -> None:
    fleet.server.restart()


def server_killed(fleet: Fleet, dice: random.Random) -> None:
    killed_and_restarted(fleet.server)


def server_stands_still(fleet: Fleet, dice: random.Random) -> None:
    with standstill(fleet.server):
        lasts(fleet, dice.uniform(0.2, SOCKET_TIMEOUT * 1.5))


def network_stands_still(fleet: Fleet, dice: random.Random) -> None:
    fleet.proxy.stall()
    lasts(fleet, dice.uniform(0.2, SOCKET_TIMEOUT * 1.5))
    fleet.proxy.heal()


def nobody_is_let_in(fleet: Fleet, dice: random.Random) -> None:
    fleet.proxy.refuse()
    fleet.proxy.cut()
    lasts(fleet, dice.uniform(0.2, 2.0))
    fleet.proxy.heal()


def connections_forgotten(fleet: Fleet, dice: random.Random) -> None:
    fleet.proxy.black_hole()


def one_thing_lost(fleet: Fleet, dice: random.Random) -> None:
    """A command that never arrives, or a reply to it, somewhere."""
    what = dice.choice(LOSABLE)
    matches = command(what) if what.isupper() else script(source(what))
    cut = fleet.proxy.cut_at(matches, dice.randint(1, 5), reply_lost=dice.random() < 0.6)
    if what in LOSABLE[:-2]:
        eventually(cut.is_set, message=f"a {what} is lost")


TROUBLES: dict[str, Trouble] = {
    trouble.__name__: trouble
    for trouble in (
        connections_killed,
        connections_reset,
        server_restarted,
        server_killed,
        server_stands_still,
        network_stands_still,
        nobody_is_let_in,
        connections_forgotten,
        one_thing_lost,
    )
}
