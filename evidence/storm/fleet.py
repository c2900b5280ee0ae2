"""The workers and servers of a storm: two machines with workers, a Redis server with a replica, and
a network between each machine and the server.

The storm (`evidence/storm/__init__.py`) starts them, and its harms (`harms.py`) hit them.
"""

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
    """A slot for one worker: when its worker has ended, the fleet starts another there."""

    machine: str
    pool: str
    size: int
    queue: str
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = MappingProxyType({})


#: Name -> place. The pool of a1 is grown, shrunk and restarted (`pools.py`). That of b1 scales
#: itself and replaces its processes. Each process of b3 loads and ends slowly, and runs one job.
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
    """The workers, servers and networks of a storm, as a context manager.

    The caller calls `begin` often: it starts a new worker for each that has ended.
    """

    def __init__(self, side: str, history: History, directory: Path, without: str) -> None:
        self.side, self.history = side, history
        self.workers: dict[str, Worker] = {}
        #: Machine -> the names of all workers that were started there.
        self.started: dict[str, list[str]] = {name: [] for name in MACHINES}
        #: Place -> when the harm to its worker ends (a thaw or a kill), by the monotonic clock.
        #: Until then no other harm may hit this worker.
        self.due: dict[str, float] = {}
        self._directory, self._without = directory, without
        self._numbers = itertools.count(1)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            enter = stack.enter_context
            # A server that is killed keeps each write that it has confirmed. If it lost one, the
            # checker could not tell that from a job that the package lost.
            self.servers = enter(Replicated(appendonly=True, appendfsync="always"))
            # Results are on a server without harms. Celery stores them, on each side alike: if it
            # lost one, that would show nothing about the package.
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
        gc.collect()  # results unsubscribe when they are freed, while the server still runs
        self._stack.close()

    def _env(self, network: str, worker: str) -> dict[str, str]:
        """Return the environment from which the app of a worker, or of the sender, is built."""
        return {
            "SIDE": self.side,
            "WITHOUT": self._without,
            "WORKER": worker,
            "HISTORY": str(self.history.path.resolve()),
            "BROKER_URL": self.networks[network].url(),
            "RESULT_URL": self.results.url(),
        }

    def begin(self) -> None:
        """Start a worker in each place whose worker has ended or was never started."""
        for place, (machine, pool, size, queue, arguments, env) in PLACES.items():
            worker = self.workers.get(place)
            if worker and worker.alive():
                if place not in self.due and _is_zombie(worker.pid):
                    # nsenter stops when its command stops. If it is not continued, it never ends.
                    worker.thaw()
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
        """Return the names of the present workers, of all machines or of one."""
        places = [place for place, spec in PLACES.items() if machine in ("", spec.machine)]
        return [self.workers[place].name for place in places]

    def move(self) -> None:
        """Connect all networks to the present primary, and cut all connections."""
        for network in self.networks.values():
            network.upstream = ("127.0.0.1", self.servers.primary.port)
            network.cut()

    def at_rest(self, within: float) -> list[str]:
        """Wait until no message is queued or in flight, at most ``within`` seconds. Return the keys
        that still have messages, each with the ids of its first jobs."""
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
        """Make each process of each worker write its stacks to the log of the worker."""
        for worker in self.workers.values():
            for child in worker.children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.send_signal(signal.SIGUSR2)
            worker.signal(signal.SIGUSR2)
        time.sleep(1)

    def states(self, steps: list[tuple[str, str]]) -> dict[tuple[str, str], str | None]:
        """Return what Celery has stored for each (job, step) in the result backend, or None."""
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
    """Return the ids of the first ten jobs whose messages are in a key."""
    read = {
        "hash": lambda: client.hvals(key),
        "list": lambda: client.lrange(key, 0, 9),
        "zset": lambda: client.zrange(key, 0, 9),
    }
    values = read.get(client.type(key), list)()
    return [found[1] for value in values if (found := re.search(r'"id": "([^"]+)"', value))][:10]


def _has_messages(key: str) -> bool:
    """Return whether a key is a queue, or holds messages that are in flight or scheduled. (Redis
    removes empty keys.)"""
    queue = key.split("\x06")[0] in QUEUES or key.startswith(("queue:", "messages"))
    return (
        queue
        or key == "unacked"
        or any(f":{kind}" in key for kind in ("private:", "landing:", "probation:", "parked:"))
    )
