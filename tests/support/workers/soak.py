"""Four workers on two machines, jobs of every kind, and one thing after the other going wrong."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from support.apps.build import build_app
from support.machines import Machine, pid_inside
from support.process import is_alive
from support.servers.database import Database
from support.servers.faults import kill_connections, killed_and_restarted, standstill
from support.servers.ledger import Ledger
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import always, eventually
from support.workers.runs import Harm, Report, report
from support.workers.worker import Worker, app_env

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
SOCKET_TIMEOUT = 2.0

#: Seconds a connection may be in trouble: an owner is dead after two heartbeats without one.
BRIEF = 2.0

#: Seconds a machine is frozen: beyond `owner_ttl`, and what it takes to see that.
FROZEN = OPTIONS["owner_ttl"] + 3 * OPTIONS["heartbeat_interval"]

#: Job kind -> how many of a hundred.
MIX = {"short": 60, "long": 12, "eta": 12, "again": 8, "refused": 8}

CONF = {
    "broker_transport_options": {"socket_timeout": SOCKET_TIMEOUT},
    # Celery drops a job whose retry it cannot publish: let it try for long.
    "task_publish_retry_policy": {"max_retries": 100, "interval_max": 0.5},
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
                self._start(place)
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

    def _start(self, place: str) -> None:
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

    # -- what goes wrong: connections, for less than the limits of an owner's death

    def connections_killed(self) -> None:
        kill_connections(self.server.client())

    def machine_cut_off(self) -> None:
        network = self._network()
        network.refuse()
        network.cut()
        self._lasts(self.dice.uniform(0.1, BRIEF / 2))
        network.heal()

    def network_stands_still(self) -> None:
        network = self._network()
        network.stall()
        self._lasts(self.dice.uniform(0.2, BRIEF))
        network.heal()

    def connections_forgotten(self) -> None:
        self._network().black_hole()

    def server_restarted(self) -> None:
        self.server.restart()

    def server_killed(self) -> None:
        killed_and_restarted(self.server)

    def server_stands_still(self) -> None:
        with standstill(self.server):
            self._lasts(self.dice.uniform(0.2, 2 * BRIEF))

    def _network(self) -> FaultProxy:
        return self.networks[self.dice.choice(sorted(self.networks))]

    def _lasts(self, seconds: float) -> None:
        always(self.server.alive, seconds, message="the server runs")

    # -- what goes wrong: processes

    def worker_killed(self) -> None:
        place = self._place()
        with self._harm("kill -9", place):
            self.workers[place].kill9_all()
        self._again(place)

    def main_process_killed(self) -> None:
        place = self._place()
        with self._harm("kill -9 of the MainProcess", place):
            self.workers[place].kill9_main()
            self._exits(place)
        self._again(place)

    def child_killed(self) -> None:
        """What the kernel does that is out of memory."""
        place = self._place("prefork")
        worker = self.workers[place].wait_ready()
        victim = self.dice.choice([child for child in worker.children() if is_alive(child)])
        with self._harm("kill -9 of a pool child", place, pid=pid_inside(victim)):
            victim.send_signal(signal.SIGKILL)

    def machine_frozen(self) -> None:
        machine = self.dice.choice(sorted(self.machines))
        places = [place for place, (where, _, _) in PLACES.items() if where == machine]
        with self._harm("freeze", *places), contextlib.ExitStack() as frozen:
            for place in places:
                frozen.enter_context(self.workers[place].frozen())
            self._lasts(FROZEN)

    def told_to_stop(self) -> None:
        """SIGTERM, as at each deploy: nothing runs twice."""
        place = self._place()
        self.workers[place].term()
        self._exits(place)
        self._again(place)

    def told_to_quit(self) -> None:
        """SIGQUIT: what runs is cut short."""
        place = self._place()
        with self._harm("QUIT", place):
            self.workers[place].quit()
            self._exits(place)
        self._again(place)

    def _exits(self, place: str) -> None:
        worker = self.workers[place]

        def ended() -> bool:
            # nsenter stops itself when it learns, too late, that its command had been stopped.
            worker.thaw()
            return not worker.alive()

        try:
            eventually(ended, 60, 0.2, message=f"{worker.name} ends")
        except AssertionError:
            worker.signal(signal.SIGABRT)  # into its log: where it hangs
            raise

    def _place(self, pool: str = "") -> str:
        return self.dice.choice([p for p, (_, kind, _) in PLACES.items() if pool in ("", kind)])

    def _again(self, place: str) -> None:
        self.workers[place].close()
        self._start(place)

    @contextlib.contextmanager
    def _harm(self, kind: str, *places: str, pid: int = 0) -> Iterator[None]:
        workers, began = frozenset(self.workers[place].name for place in places), time.time()
        yield
        self.harms.append(Harm(kind, workers, began, time.time(), pid))

    # -- the whole

    TROUBLES = (
        connections_killed,
        machine_cut_off,
        network_stands_still,
        connections_forgotten,
        server_restarted,
        server_killed,
        server_stands_still,
        worker_killed,
        main_process_killed,
        child_killed,
        told_to_stop,
        told_to_quit,
        machine_frozen,
    )

    def run(self, seconds: float) -> Report:
        """One trouble after the other for so long (each at least once), then the report."""
        until = time.monotonic() + seconds
        due = list(self.TROUBLES)
        self.dice.shuffle(due)
        while time.monotonic() < until:
            trouble = due.pop() if due else self.dice.choice(self.TROUBLES)
            self.history[trouble.__name__] += 1
            trouble(self)
            self._progress()
        self._everybody_works()
        self._stop_publishing()
        self._settled()
        return report(self.published, self.ledger.lines(), self.harms)

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
            assert not self.db.length(), f"{self.db.length()} jobs wait"
            assert not self.db.held(), self.db.held()
            return True

        with contextlib.suppress(AssertionError):  # the report names what is lost
            eventually(at_rest, 90, 0.2)
