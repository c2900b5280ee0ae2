"""Harm the workers, networks and servers of a storm: kill, freeze and stop them, break connections,
let the server come back from a snapshot. A seeded random generator draws the harms, and each is
written to the history.

The storm calls `Harms.next` every few seconds, and `Harms.lasting` in between.
"""

from __future__ import annotations

import math
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil

from support.machines import pid_inside
from support.process import is_alive
from support.waiting import eventually
from support.workers.worker import Worker

from .fleet import MACHINES, PLACES, Fleet
from .load import SLOW
from .network import Network
from .pools import Pools, node_of
from .quota import Quota
from .snapshot import Snapshots
from .tasks import OPTIONS

#: Seconds of a freeze: shorter than the limits after which peers declare a worker dead, and longer.
BRIEF = (0.5, 3.0)
LONG = OPTIONS["owner_ttl"] + 3 * OPTIONS["heartbeat_interval"]
#: Seconds from SIGTERM to SIGKILL, as from an orchestrator with a short grace period.
GRACE = (0.2, 4.0)
#: Seconds for which the server is stopped (SIGSTOP).
STILL = (0.2, 6.0)
#: Seconds for which a network fails in part; seconds of delay in each direction; and the share of
#: packets that are lost.
FAILS, DELAY, LOSS = (1.0, LONG), (0.5, 1.5), (0.05, 0.3)
#: Seconds for which a worker has little CPU.
THROTTLED = (5.0, 20.0)
#: Seconds after which the server closes idle connections, and for which it does so.
IDLE_S, CLOSES = 1, (5.0, 30.0)
#: Number of workers killed in a row while their processes load; and seconds from the moment that a
#: worker consumes to its kill.
LOADING, LOADED = 3, (0.5, 3.0)
#: Seconds to wait for the next such worker.
GIVES_UP = 20.0

#: Harms -> what may happen to the jobs of the workers that they hit. Written before the first run,
#: and copied into each history.
EXPECTED = {
    "kill -9, TERM, freeze": "jobs that ran there may run again, jobs that waited run once; a job "
    "is given up only if such harms hit three of its runs",
    "connections cut, server killed, stopped, failed over": "jobs that ran or were settled at that "
    "time may run again",
    "partition to the server, partition from the server, packet loss, latency": "jobs that ran "
    "or were settled at that time may run again; a job is given up only if it lost a worker in "
    "this manner three times",
    "little CPU": "jobs that ran there may run again: a worker may miss its heartbeats",
    "server back from a snapshot": "jobs that were settled since the snapshot may run again once "
    "the server is back, and publish their steps again; jobs that were sent since then may be "
    "lost; and all that is allowed if a server is killed",
    "idle connections closed": "nothing: no job runs again, none is lost, and none is given up",
    "pool grown, shrunk, restarted": "nothing: no job runs again, and none is given up",
    "kill -9 while processes load": "no job is given up: none of them had begun",
}


#: A function that ends a lasting harm, and returns facts for the history.
End = Callable[[], dict[str, Any]]


class Harms:
    """The source of harms to a fleet. Harms that last overlap with those that follow."""

    def __init__(self, fleet: Fleet, seed: int, until: float = math.inf) -> None:
        """Prepare all kinds of harm.

        Arguments:
            fleet: the workers, servers and networks to harm.
            seed: seed of the random generator.
            until: when the storm is over, by the monotonic clock.
        """
        self.fleet, self.dice = fleet, random.Random(seed)
        self._pools = Pools(fleet, self)
        self._snapshots = Snapshots(fleet, self, until)
        #: The machines whose network fails in part.
        self._failing: set[str] = set()
        self._lasting: list[tuple[float, Callable[[], Any]]] = []
        self._kinds: dict[str, Callable[[], bool]] = {
            "kill -9 of a child": self._child,
            "kill -9 of the main process": self._main,
            "kill -9 of a worker": self._worker,
            "TERM, then KILL": self._term,
            "freeze": lambda: self._freeze("freeze", self.dice.uniform(*BRIEF)),
            "freeze beyond the limits": lambda: self._freeze("freeze beyond the limits", LONG),
            "connections cut": self._cut,
            "server killed": self._kill_server,
            "server stopped": self._stop_server,
            "server failed over": self._fail_over,
            "partition to the server": lambda: self._fail_network(
                "partition to the server", lambda network: network.partition(to_server=True)
            ),
            "partition from the server": lambda: self._fail_network(
                "partition from the server", lambda network: network.partition(to_server=False)
            ),
            "packet loss": lambda: self._fail_network(
                "packet loss", lambda network: network.lose(self.dice.uniform(*LOSS))
            ),
            "latency": lambda: self._fail_network(
                "latency", lambda network: network.delay(self.dice.uniform(*DELAY))
            ),
            "little CPU": self._throttle,
            "server back from a snapshot": self._snapshots.take,
            "idle connections closed": self._close_idle,
            "pool grown": self._pools.grow,
            "pool restarted": self._pools.restart,
            "kill -9 while processes load": lambda: self._kill_loading(LOADING),
        }
        self._deck: list[str] = []
        self.count = 0

    def next(self) -> None:
        """Do one harm, of the next kind that has a possible target. Each kind comes once before the
        first comes again, so that a short storm has all of them."""
        self._deck = self._deck or self.dice.sample(list(self._kinds), len(self._kinds))
        for kind in reversed(self._deck):
            if self._kinds[kind]():
                self._deck.remove(kind)  # kinds without a target stay in the deck
                self.count += 1
                return

    def lasting(self) -> bool:
        """End the harms whose time is over, and return whether any still last."""
        now = time.monotonic()
        for entry in [entry for entry in self._lasting if entry[0] <= now]:
            self._lasting.remove(entry)
            entry[1]()
        return bool(self._lasting)

    # -- workers

    def _drawn(self, pool: str = "") -> str | None:
        """Draw a place whose worker is ready, alive and not under another harm; of one kind of pool
        if that is named. Return None if there is no such place."""
        places = [
            place
            for place, spec in PLACES.items()
            if pool in ("", spec.pool)
            and place not in self.fleet.due
            and self.fleet.workers[place].alive()
            and " ready." in self.fleet.workers[place].log()
        ]
        return self.dice.choice(places) if places else None

    def write(self, kind: str, workers: list[str], began: float, **facts: Any) -> None:
        """Write a harm that ends now to the history; ``facts`` are more fields of the line."""
        until = round(time.time(), 4)
        self.fleet.history.write(
            "harm", kind=kind, workers=workers, until=until, **{**facts, "at": round(began, 4)}
        )

    def _child(self) -> bool:
        """Kill one process of a prefork pool. Return False if there is none."""
        place = self._drawn("prefork")
        children = [c for c in self.fleet.workers[place].children() if is_alive(c)] if place else []
        if not place or not children:
            return False
        victim, began = self.dice.choice(children), time.time()
        try:
            pid = pid_inside(victim)
            victim.send_signal(signal.SIGKILL)
        except (OSError, psutil.NoSuchProcess):
            return False
        self.write("kill -9 of a child", [self.fleet.workers[place].name], began, pid=pid)
        return True

    def _main(self) -> bool:
        """Kill the main process of a worker, and not the children of its pool."""
        return self._killed("kill -9 of the main process", lambda worker: worker.kill9_main())

    def _worker(self) -> bool:
        """Kill all processes of a worker at once."""
        return self._killed("kill -9 of a worker", lambda worker: worker.kill9_all())

    def _killed(self, kind: str, kill: Callable[[Worker], None]) -> bool:
        """Kill a worker and wait until it is gone. Return False if no worker is available."""
        place = self._drawn()
        if not place:
            return False
        worker, began = self.fleet.workers[place], time.time()
        kill(worker)
        # Its children may outlive it for a moment. If the harm were written now, the checker would
        # not excuse runs that a child starts in this moment.
        _wait_gone(worker)
        self.write(kind, [worker.name], began)
        return True

    def _held(self, kind: str, seconds: float, hit: Callable[[Worker], End | None]) -> bool:
        """Do a lasting harm to a worker. Return False if no worker is available, or ``hit`` fails.

        Arguments:
            kind: name of the harm in the history.
            seconds: how long it lasts.
            hit: begins the harm, and returns the function that ends it, or None if it failed.
        """
        place = self._drawn()
        if not place:
            return False
        worker, began = self.fleet.workers[place], time.time()
        end = hit(worker)
        if end is None:
            return False
        self._last(place, seconds, lambda: self.write(kind, [worker.name], began, **end()))
        return True

    def _term(self) -> bool:
        """Send SIGTERM to a worker, and kill it when a short grace period is over."""

        def hit(worker: Worker) -> End:
            worker.term()

            def kill() -> dict[str, Any]:
                worker.kill9_all()
                _wait_gone(worker)
                return {}

            return kill

        return self._held("TERM, then KILL", self.dice.uniform(*GRACE), hit)

    def _freeze(self, kind: str, seconds: float) -> bool:
        """Stop all processes of a worker for so many seconds (SIGSTOP)."""

        def hit(worker: Worker) -> End:
            worker.freeze()

            def thaw() -> dict[str, Any]:
                worker.thaw()
                return {}

            return thaw

        return self._held(kind, seconds, hit)

    def after(self, seconds: tuple[float, float], act: Callable[[], Any]) -> None:
        """Call ``act`` later, after a random time between two numbers of seconds."""
        self._lasting.append((time.monotonic() + self.dice.uniform(*seconds), act))

    def _last(self, place: str, seconds: float, end: Callable[[], Any]) -> None:
        """Reserve the worker of a place for so many seconds, then call ``end``."""
        due = time.monotonic() + seconds
        self.fleet.due[place] = due

        def end_and_give_back() -> None:
            end()
            # The worker may have died meanwhile, and another harm may have reserved its successor.
            # If that were released here, two harms could hit it at the same time.
            if self.fleet.due.get(place) == due:
                del self.fleet.due[place]

        self._lasting.append((due, end_and_give_back))

    def _kill_loading(self, times: int, until: float | None = None) -> bool:
        """Kill the worker whose pool loads slowly, after it has claimed jobs and before one can
        begin. Then kill its successor in the same manner, if that is ready in time.

        Arguments:
            times: number of workers to kill, this one included.
            until: when to stop waiting for a ready worker, by the monotonic clock.
        """
        [place] = [place for place, spec in PLACES.items() if spec.queue == SLOW]
        worker, now = self.fleet.workers[place], time.monotonic()
        until = now + GIVES_UP if until is None else until
        if place in self.fleet.due or now > until:
            return False
        if not worker.alive() or node_of(worker) is None:
            self.after(LOADED, partial(self._kill_loading, times, until))
            return True

        def kill() -> None:
            began = time.time()
            worker.kill9_all()
            _wait_gone(worker)
            self.write("kill -9 while processes load", [worker.name], began)
            if times > 1:
                self.after((0, 0), partial(self._kill_loading, times - 1))

        self._last(place, self.dice.uniform(*LOADED), kill)
        return True

    # -- the network and the server

    def _cut(self) -> bool:
        """Cut all connections of the workers of one machine."""
        machine, began = self.dice.choice(MACHINES), time.time()
        self.fleet.networks[machine].cut()
        self.write("connections cut", self.fleet.names(machine), began, cut=True)
        return True

    def _fail_network(self, kind: str, fail: Callable[[Network], None]) -> bool:
        """Make the network of a machine fail in part for some seconds. Return False if the networks
        of all machines fail already. Connections may break: a client closes its connection if a
        reply is late."""
        machines = [machine for machine in MACHINES if machine not in self._failing]
        if not machines:
            return False
        machine, began = self.dice.choice(machines), time.time()
        network, started = self.fleet.networks[machine], len(self.fleet.started[machine])
        present = self.fleet.names(machine)
        self._failing.add(machine)
        fail(network)

        def restore() -> None:
            network.restore()
            self._failing.remove(machine)
            workers = [*present, *self.fleet.started[machine][started:]]
            self.write(kind, workers, began, cut=True)

        self.after(FAILS, restore)
        return True

    def _throttle(self) -> bool:
        """Limit a worker to five percent of one CPU for some seconds."""

        def hit(worker: Worker) -> End | None:
            try:
                quota = Quota([psutil.Process(worker.pid), *worker.children()])
            except psutil.NoSuchProcess:
                return None

            def end() -> dict[str, Any]:
                quota.end()
                return {"means": quota.means}

            return end

        return self._held("little CPU", self.dice.uniform(*THROTTLED), hit)

    def _close_idle(self) -> bool:
        """Make the servers close idle connections for some seconds, as a firewall would."""
        began, servers = time.time(), self.fleet.servers.servers
        for server in servers:
            server.client().config_set("timeout", IDLE_S)

        def end() -> None:
            for server in servers:
                server.client().config_set("timeout", 0)
            self.write("idle connections closed", [], began)

        self.after(CLOSES, end)
        return True

    def _kill_server(self) -> bool:
        """Kill the primary and start it again at once, from its append-only file."""
        began, primary = time.time(), self.fleet.servers.primary
        primary.kill()
        primary.start()
        self.write("server killed", self.fleet.names(), began, cut=True)
        return True

    def _stop_server(self) -> bool:
        """Stop the process of the primary for some seconds (SIGSTOP)."""
        began, primary = time.time(), self.fleet.servers.primary
        primary.pause()
        time.sleep(self.dice.uniform(*STILL))
        primary.resume()
        self.write("server stopped", self.fleet.names(), began, cut=True)
        return True

    def _fail_over(self) -> bool:
        """Do a planned failover, at a moment when the replica has everything. An unplanned one may
        lose confirmed writes, which no client of Redis can prevent."""
        began, servers = time.time(), self.fleet.servers
        servers.wait_in_step()
        old = servers.primary
        new = servers.failover()
        # If a server kept its former options, it would come back in its former role after a kill.
        new.options.pop("replicaof", None)
        old.configure(replicaof=["127.0.0.1", str(new.port)])
        self.fleet.move()
        self.write("server failed over", self.fleet.names(), began, cut=True)
        return True


def _wait_gone(worker: Worker) -> None:
    """Wait until no process of a worker is left."""

    def gone() -> bool:
        # nsenter stops itself if it learns late that its command had been stopped. If it is not
        # continued, it never ends.
        worker.thaw()
        return not worker.alive() and not worker.survivors()

    eventually(gone, 60, message=f"{worker.name} is gone")
