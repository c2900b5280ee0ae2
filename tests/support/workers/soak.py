"""Four workers on two machines, jobs of every kind, and one thing after the other going wrong."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from support.apps.build import build_app
from support.machines import Machine
from support.servers.database import Database
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import eventually
from support.workers.runs import Harm, Report, Standstill, report
from support.workers.soak_troubles import OPTIONS, PLACES, TROUBLES
from support.workers.worker import Worker, app_env

SOCKET_TIMEOUT = 2.0

#: Job kind -> how many of a hundred.
MIX = {"short": 60, "long": 12, "eta": 12, "again": 8, "refused": 8}

CONF = {
    "broker_transport_options": {"socket_timeout": SOCKET_TIMEOUT},
    "worker_proc_alive_timeout": 30,
}


class Soak:
    """Use as a context manager, then `run`. `told` hears of every worker that is started."""

    def __init__(
        self,
        books: str,
        ledger: Ledger,
        directory: Path,
        seed: int,
        told: Callable[[Worker], object],
    ) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.ledger = ledger
        self.workers: dict[str, Worker] = {}
        self.published: list[str] = []
        self.harms: list[Harm] = []
        self.standstills: list[Standstill] = []
        self.history: Counter[str] = Counter()
        self._books = books
        self._directory = directory
        self._told = told
        self._stack = contextlib.ExitStack()
        self._names = itertools.count(1)
        self._stopped = threading.Event()
        self._publisher = threading.Thread(target=self._publish, name="publisher", daemon=True)

    def __enter__(self) -> Soak:
        with contextlib.ExitStack() as stack:
            self.server = stack.enter_context(Server(appendonly=True, appendfsync="always"))
            self.db = Database(self.server.client())
            publisher = self._env("publisher", self.server.url(), superfetch=False)
            self.app = build_app({**publisher, "RESULT_URL": ""})  # it waits for no results
            names = sorted({machine for machine, _, _ in PLACES.values()})
            self.machines = {m: stack.enter_context(Machine(m, self._directory)) for m in names}
            self.networks = {m: stack.enter_context(FaultProxy(self.server.port)) for m in names}
            stack.callback(lambda: [worker.close() for worker in self.workers.values()])
            for place in PLACES:
                self.start(place)
            for worker in self.workers.values():
                worker.wait_ready()
            self._stack = stack.pop_all()
        self._publisher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_publishing()
        self._stack.close()
        self.app.close()

    # -- workers and jobs

    def _env(self, name: str, url: str, *, superfetch: bool = True) -> dict[str, str]:
        env = app_env(
            url,
            ledger_url=self.ledger.url,
            result_url=self._books,
            superfetch=superfetch,
            options=OPTIONS if superfetch else {},
            conf=CONF if superfetch else {},
        )
        return {**env, "LEDGER_WORKER": name}

    def start(self, place: str) -> None:
        machine, pool, size = PLACES[place]
        name = f"{place}-{next(self._names)}"
        self.workers[place] = Worker(
            self._env(name, self.networks[machine].url()),
            app="soaked",
            pool=pool,
            concurrency=size,
            name=name,
            host=self.machines[machine].seat(),
            directory=self._directory,
        )
        self._told(self.workers[place])

    def _publish(self) -> None:
        dice = random.Random(self.seed + 1)
        for number in itertools.count(1):
            if self._stopped.wait(0.08):
                return
            kind = dice.choices(list(MIX), list(MIX.values()))[0]
            name = f"{kind}-{number}"
            try:
                if kind in ("again", "refused"):
                    self.app.send_task(f"soak.{kind}", (name,), retry=False)
                else:
                    seconds = 2.5 if kind == "long" else 0.05
                    due = {"countdown": dice.uniform(0.5, 6)} if kind == "eta" else {}
                    self.app.send_task("soak.work", (name, seconds), retry=False, **due)
            except Exception:  # in doubt: it may have arrived or not; nobody counts on it
                continue
            self.published.append(f"{name}#1" if kind == "again" else name)

    def _stop_publishing(self) -> None:
        self._stopped.set()
        if self._publisher.is_alive():
            self._publisher.join(60)

    # -- the whole

    def run(self, seconds: float) -> Report:
        """One trouble after the other for so long (each at least once), then the report."""
        until = time.monotonic() + seconds
        due = list(TROUBLES)
        self.dice.shuffle(due)
        while time.monotonic() < until:
            trouble = due.pop() if due else self.dice.choice(TROUBLES)
            self.history[trouble.__name__] += 1
            trouble(self)
            self._progress()
        self._everybody_works()
        self._stop_publishing()
        self._settled()
        return self._report()

    def _report(self) -> Report:
        return report(self.published, self.ledger.lines(), self.harms, self.standstills)

    def _progress(self, jobs: int = 8) -> None:
        before = len(self.ledger.lines("started"))
        goal = before + jobs
        eventually(lambda: len(self.ledger.lines("started")) >= goal, 60, 0.2, "work goes on")

    def _everybody_works(self) -> None:
        """Nobody hangs: each worker takes jobs again after all that."""
        before = time.time()
        names = {worker.name for worker in self.workers.values()}

        def at_work() -> bool:
            lines = self.ledger.lines("started")
            idle = names - {line["worker"] for line in lines if line["at"] > before}
            assert not idle, f"{sorted(idle)} have begun no job for {time.time() - before:.0f} s"
            return True

        eventually(at_work, 60, 0.2)

    def _settled(self) -> None:
        def at_rest() -> bool:
            # Told by the ledger first: a job that goes from one place of the server to another
            # between two looks is in none of them.
            lost = self._report().lost
            assert not lost, f"{len(lost)} jobs have not finished: {lost[:5]}"
            assert not self.db.length(), f"{self.db.length()} jobs wait"
            assert not self.db.held(), self.db.held()
            assert not self.db.parked(), self.db.parked()
            return True

        with contextlib.suppress(AssertionError):  # the report names what is lost
            eventually(at_rest, 90, 0.2)
