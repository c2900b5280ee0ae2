"""What goes wrong in a soak: connections break, and workers and machines die or freeze."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from support.machines import pid_inside
from support.process import is_alive
from support.servers.faults import kill_connections, killed_and_restarted, standstill
from support.servers.proxy import FaultProxy
from support.waiting import always, eventually
from support.workers.runs import Harm, Standstill

if TYPE_CHECKING:
    from support.workers.soak import Soak

#: Place of a worker -> its machine, its pool and that one's size.
PLACES = {
    "a1": ("alpha", "prefork", 2),
    "a2": ("alpha", "threads", 2),
    "b1": ("beta", "prefork", 2),
    "b2": ("beta", "gevent", 4),
}

OPTIONS = {
    "heartbeat_interval": 2,
    "owner_ttl": 10,
    "reap_interval": 2,
    # Dice may hit one job again and again; here nothing is to be killed for it.
    "strike_limit": 50,
    "recovery_limit": 50,
}

#: Seconds a connection may be in trouble: an owner is dead after two heartbeats without one.
BRIEF = 2.0

#: Seconds the server stands still at worst.
LONG = 20.0

#: Seconds a machine is frozen: beyond `owner_ttl`, and what it takes to see that.
FROZEN = OPTIONS["owner_ttl"] + 3 * OPTIONS["heartbeat_interval"]

# -- what goes wrong: connections, for less than the limits of an owner's death


def connections_killed(soak: Soak) -> None:
    kill_connections(soak.server.client())


def machine_cut_off(soak: Soak) -> None:
    network = a_network(soak)
    network.refuse()
    network.cut()
    lasts(soak, soak.dice.uniform(0.1, BRIEF / 2))
    network.heal()


def network_stands_still(soak: Soak) -> None:
    network = a_network(soak)
    network.stall()
    lasts(soak, soak.dice.uniform(0.2, BRIEF))
    network.heal()


def connections_forgotten(soak: Soak) -> None:
    a_network(soak).black_hole()


def server_restarted(soak: Soak) -> None:
    soak.server.restart()


def server_killed(soak: Soak) -> None:
    killed_and_restarted(soak.server)


def server_stands_still(soak: Soak) -> None:
    with standstill(soak.server):
        lasts(soak, soak.dice.uniform(0.2, 2 * BRIEF))


def server_stands_still_for_long(soak: Soak) -> None:
    """Beyond what Celery tries to send a retry for, and beyond `owner_ttl`."""
    began = time.time()
    with standstill(soak.server):
        lasts(soak, LONG)
    soak.standstills.append(Standstill(began, time.time()))


def a_network(soak: Soak) -> FaultProxy:
    return soak.networks[soak.dice.choice(sorted(soak.networks))]


def lasts(soak: Soak, seconds: float) -> None:
    always(soak.server.alive, seconds, message="the server runs")


# -- what goes wrong: processes


def worker_killed(soak: Soak) -> None:
    place = drawn(soak)
    with harm(soak, "kill -9", place):
        soak.workers[place].kill9_all()
    start_again(soak, place)


def main_process_killed(soak: Soak) -> None:
    place = drawn(soak)
    with harm(soak, "kill -9 of the MainProcess", place):
        soak.workers[place].kill9_main()
        wait_exit(soak, place)
    start_again(soak, place)


def child_killed(soak: Soak) -> None:
    """What the kernel does that is out of memory."""
    place = drawn(soak, "prefork")
    worker = soak.workers[place].wait_ready()
    victim = soak.dice.choice([child for child in worker.children() if is_alive(child)])
    with harm(soak, "kill -9 of a pool child", place, pid=pid_inside(victim)):
        victim.send_signal(signal.SIGKILL)


def machine_frozen(soak: Soak) -> None:
    machine = soak.dice.choice(sorted(soak.machines))
    places = [place for place, (where, _, _) in PLACES.items() if where == machine]
    with harm(soak, "freeze", *places), contextlib.ExitStack() as frozen:
        for place in places:
            frozen.enter_context(soak.workers[place].frozen())
        lasts(soak, FROZEN)


def is_stopping(soak: Soak) -> None:
    """SIGTERM, as at each deploy: nothing runs twice."""
    place = drawn(soak)
    soak.workers[place].term()
    wait_exit(soak, place)
    start_again(soak, place)


def told_to_quit(soak: Soak) -> None:
    """SIGQUIT: what runs is cut short."""
    place = drawn(soak)
    with harm(soak, "QUIT", place):
        soak.workers[place].quit()
        wait_exit(soak, place)
    start_again(soak, place)


def wait_exit(soak: Soak, place: str) -> None:
    worker = soak.workers[place]

    def ended() -> bool:
        # nsenter stops itself when it learns, too late, that its command had been stopped.
        worker.thaw()
        return not worker.alive()

    try:
        eventually(ended, 60, 0.2, message=f"{worker.name} ends")
    except AssertionError:
        worker.signal(signal.SIGABRT)  # into its log: where it hangs
        raise


def drawn(soak: Soak, pool: str = "") -> str:
    return soak.dice.choice([p for p, (_, kind, _) in PLACES.items() if pool in ("", kind)])


def start_again(soak: Soak, place: str) -> None:
    soak.workers[place].close()
    soak.start(place)


@contextlib.contextmanager
def harm(soak: Soak, kind: str, *places: str, pid: int = 0) -> Iterator[None]:
    workers, began = frozenset(soak.workers[place].name for place in places), time.time()
    yield
    soak.harms.append(Harm(kind, workers, began, time.time(), pid))


TROUBLES = (
    connections_killed,
    machine_cut_off,
    network_stands_still,
    connections_forgotten,
    server_restarted,
    server_killed,
    server_stands_still,
    server_stands_still_for_long,
    worker_killed,
    main_process_killed,
    child_killed,
    is_stopping,
    told_to_quit,
    machine_frozen,
)
