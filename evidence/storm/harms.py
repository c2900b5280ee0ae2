"""The storm's ten kinds of harm, drawn by its dice and written down."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil

from support.machines import pid_inside
from support.process import is_alive
from support.waiting import eventually
from support.workers.worker import Worker

from .fleet import MACHINES, PLACES, Fleet
from .tasks import OPTIONS

#: Seconds of a freeze: below what makes anybody take a worker for dead, and beyond.
BRIEF = (0.5, 3.0)
LONG = OPTIONS["owner_ttl"] + 3 * OPTIONS["heartbeat_interval"]
#: Seconds between TERM and KILL, as an orchestrator that is short of time has it.
GRACE = (0.2, 4.0)
#: Seconds for which the server stands still.
STILL = (0.2, 6.0)


class Harms:
    """Does one after the other to a fleet. What lasts goes on while others come."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.dice = fleet, random.Random(seed)
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
        }
        self.count = 0

    def next(self) -> None:
        """One harm, of a kind that finds somebody to befall."""
        kinds = self.dice.sample(list(self._kinds), len(self._kinds))
        self.count += any(self._kinds[kind]() for kind in kinds)

    def lasting(self) -> bool:
        """End what has lasted long enough; whether something still lasts."""
        now = time.monotonic()
        for entry in [entry for entry in self._lasting if entry[0] <= now]:
            self._lasting.remove(entry)
            entry[1]()
        return bool(self._lasting)

    # -- workers

    def _drawn(self, pool: str = "") -> str | None:
        """A place whose worker is at work and in nobody's hands."""
        places = [
            place
            for place, (_, kind, _, _) in PLACES.items()
            if pool in ("", kind)
            and place not in self.fleet.due
            and self.fleet.workers[place].alive()
            and " ready." in self.fleet.workers[place].log()
        ]
        return self.dice.choice(places) if places else None

    def _write(self, kind: str, workers: list[str], began: float, **facts: Any) -> None:
        until = round(time.time(), 4)
        self.fleet.history.write(
            "harm", kind=kind, workers=workers, until=until, **{**facts, "at": round(began, 4)}
        )

    def _child(self) -> bool:
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
        self._write("kill -9 of a child", [self.fleet.workers[place].name], began, pid=pid)
        return True

    def _main(self) -> bool:
        return self._killed("kill -9 of the main process", lambda worker: worker.kill9_main())

    def _worker(self) -> bool:
        return self._killed("kill -9 of a worker", lambda worker: worker.kill9_all())

    def _killed(self, kind: str, kill: Callable[[Worker], None]) -> bool:
        place = self._drawn()
        if not place:
            return False
        worker, began = self.fleet.workers[place], time.time()
        kill(worker)
        # Its children may outlive it for a moment.
        _wait_gone(worker)
        self._write(kind, [worker.name], began)
        return True

    def _term(self) -> bool:
        place = self._drawn()
        if not place:
            return False
        worker, began = self.fleet.workers[place], time.time()
        worker.term()

        def kill() -> None:
            worker.kill9_all()
            _wait_gone(worker)
            self._write("TERM, then KILL", [worker.name], began)
            self.fleet.due.pop(place, None)

        self._last(place, self.dice.uniform(*GRACE), kill)
        return True

    def _freeze(self, kind: str, seconds: float) -> bool:
        place = self._drawn()
        if not place:
            return False
        worker, began = self.fleet.workers[place], time.time()
        worker.freeze()

        def thaw() -> None:
            worker.thaw()
            self._write(kind, [worker.name], began)
            self.fleet.due.pop(place, None)

        self._last(place, seconds, thaw)
        return True

    def _last(self, place: str, seconds: float, end: Callable[[], Any]) -> None:
        due = time.monotonic() + seconds
        self.fleet.due[place] = due
        self._lasting.append((due, end))

    # -- the network and the server

    def _cut(self) -> bool:
        machine, began = self.dice.choice(MACHINES), time.time()
        self.fleet.networks[machine].cut()
        self._write("connections cut", self.fleet.names(machine), began, cut=True)
        return True

    def _kill_server(self) -> bool:
        began, primary = time.time(), self.fleet.servers.primary
        primary.kill()
        primary.start()
        self._write("server killed", self.fleet.names(), began, cut=True)
        return True

    def _stop_server(self) -> bool:
        began, primary = time.time(), self.fleet.servers.primary
        primary.pause()
        time.sleep(self.dice.uniform(*STILL))
        primary.resume()
        self._write("server stopped", self.fleet.names(), began, cut=True)
        return True

    def _fail_over(self) -> bool:
        """Planned: the replica has everything. What an unplanned one loses nobody can give back."""
        began, servers = time.time(), self.fleet.servers
        servers.wait_in_step()
        old = servers.primary
        new = servers.failover()
        # As each of them would be started again.
        new.options.pop("replicaof", None)
        old.configure(replicaof=["127.0.0.1", str(new.port)])
        self.fleet.move()
        self._write("server failed over", self.fleet.names(), began, cut=True)
        return True


def _wait_gone(worker: Worker) -> None:
    """Until nothing of it is left."""

    def gone() -> bool:
        # nsenter stops itself when it learns, too late, that its command had been stopped.
        worker.thaw()
        return not worker.alive() and not worker.survivors()

    eventually(gone, 60, message=f"{worker.name} is gone")
