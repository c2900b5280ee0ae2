"""What the storm rages over: two machines with workers, a server with a replica, and a network
between each machine and the server."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from support.hosts import namespaces_available
from support.machines import Machine
from support.servers.sentinel import Replicated
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker

from ..history import History
from .load import ORDERED, QUEUES, SHARED, SLOW
from .network import Network
from .tasks import build

if TYPE_CHECKING:
    from typing_extensions import Self


class Place(NamedTuple):
    """Where a worker is started, whenever there is none."""

    machine: str
    pool: str
    size: int
    queue: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = MappingProxyType({})


#: One pool is grown, shrunk and restarted (`harms.py`), one scales itself and replaces its
#: processes, and the processes of one load and end slowly, and run one job each.
PLACES = {
    "a1": Place("alpha", "prefork", 2, SHARED),
    "a2": Place("alpha", "threads", 4, SHARED),
    "a3": Place("alpha", "solo", 1, ORDERED),
    "b1": Place(
        "beta",
        "prefork",
        2,
        SHARED,
        ("--autoscale=4,1", "--max-tasks-per-child=30"),
        {"AUTOSCALE_KEEPALIVE": "1"},
    ),
    "b2": Place("beta", "gevent", 8, SHARED),
    "b3": Place("beta", "prefork", 3, SLOW, ("--max-tasks-per-child=1",), {"LOADS": "4,6"}),
}
MACHINES = ("alpha", "beta")


class Fleet:
    """Use as a context manager. `begin` is to be called often: it starts who has ended."""

    def __init__(self, side: str, history: History, directory: Path, without: str) -> None:
        self.side, self.history = side, history
        self.workers: dict[str, Worker] = {}
        #: Machine -> the names of all workers that were started there.
        self.started: dict[str, list[str]] = {name: [] for name in MACHINES}
        #: When whoever stands still or is to be killed is let go again, or killed.
        self.due: dict[str, float] = {}
        self._directory, self._without = directory, without
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            # What it has confirmed outlives a server that is killed.
            self.servers = enter(Replicated(appendonly=True, appendfsync="always"))
            # No harm befalls results: what becomes of them is Celery's affair, on each side.
            self.results = enter(Server())
            port = self.servers.primary.port
            self.networks = {name: enter(Network(port)) for name in (*MACHINES, "sender")}
            if namespaces_available()[0]:
                self.machines = {name: enter(Machine(name, self._directory)) for name in MACHINES}
            else:
                self.machines = {}
            self.app = build(self._env("sender", ""))
            stack.callback(self.app.close)
            stack.callback(lambda: [worker.close() for worker in self.workers.values()])
            self.begin()
            for worker in self.workers.values():
                worker.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()  # results have a farewell to say to the server
        self._stack.close()

    def _env(self, network: str, worker: str) -> dict[str, str]:
        return {
            "SIDE": self.side,
            "WITHOUT": self._without,
            "WORKER": worker,
            "HISTORY": str(self.history.path.resolve()),
            "BROKER_URL": self.networks[network].url(),
            "RESULT_URL": self.results.url(),
        }

    def begin(self) -> None:
        """Start a worker where there is none, or none any more: as systemd would."""
        for place, (machine, pool, size, queue, arguments, env) in PLACES.items():
            worker = self.workers.get(place)
            if worker and worker.alive():
                if place not in self.due and _is_zombie(worker.pid):
                    worker.thaw()  # nsenter, which stopped with its command, has to notice the end
                continue
            if worker:
                worker.close()
                self.due.pop(place, None)
            name = f"{place}-{next(self._numbers)}"
            self.history.write("worker", worker=name, place=place, queue=queue)
            self.started[machine].append(name)
            self.workers[place] = Worker(
                {**self._env(machine, name), **env},
                app="evidence.storm.worker",
                pool=pool,
                concurrency=size,
                name=name,
                queues=[queue],
                args=arguments,
                host=self.machines[machine].seat() if self.machines else None,
                directory=self._directory,
            )

    def names(self, machine: str = "") -> list[str]:
        """Of the workers, or of those of one machine."""
        places = [place for place, spec in PLACES.items() if machine in ("", spec.machine)]
        return [self.workers[place].name for place in places]

    def move(self) -> None:
        """All networks lead to whoever is primary now, and all connections are cut."""
        for network in self.networks.values():
            network.upstream = ("127.0.0.1", self.servers.primary.port)
            network.cut()

    def at_rest(self, within: float) -> list[str]:
        """Wait until no message waits anywhere and none is in flight; the keys that have some."""
        client = self.servers.primary.client(decode_responses=True)
        keys: list[str] = []

        def calm() -> bool:
            self.begin()
            nonlocal keys
            keys = [key for key in client.scan_iter(count=1000) if _has_messages(key)]
            return not keys

        with contextlib.suppress(AssertionError):
            eventually(calm, within, 0.5)
        return [f"{key} ({', '.join(_jobs_in(client, key))})" for key in keys]

    def show_stacks(self) -> None:
        """Let each process of each worker write its stacks to its log."""
        for worker in self.workers.values():
            for child in worker.children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGUSR2)
            worker.signal(signal.SIGUSR2)
        time.sleep(1)

    def states(self, steps: list[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """What the result backend has of each, as Celery has stored it."""
        client: Any = self.results.client(decode_responses=True)
        stored: dict[tuple[str, str], str | None] = {}
        for at in range(0, len(steps), 1000):
            chunk = steps[at : at + 1000]
            kept = client.mget([f"celery-task-meta-{job}:{step}" for job, step in chunk])
            stored.update(zip(chunk, kept, strict=True))
        return stored


def _is_zombie(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _jobs_in(client: Any, key: str) -> list[str]:
    """The ids of the first jobs whose messages a key has."""
    read = {
        "hash": lambda: client.hvals(key),
        "list": lambda: client.lrange(key, 0, 9),
        "zset": lambda: client.zrange(key, 0, 9),
    }
    values = read.get(client.type(key), list)()
    return [found[1] for value in values if (found := re.search(r'"id": "([^"]+)"', value))][:10]


def _has_messages(key: str) -> bool:
    """Whether a key is a queue, or keeps messages in flight or for later; empty keys are gone."""
    queue = key.split("\x06")[0] in QUEUES or key.startswith(("queue:", "messages"))
    return (
        queue
        or key == "unacked"
        or any(f":{kind}" in key for kind in ("private:", "landing:", "probation:", "parked:"))
    )
