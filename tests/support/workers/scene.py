"""A worker that is about to be stopped: one job runs, the others are reserved, or still wait on the
queue. Each scene has a server of its own, so that many may play at once."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from support.apps.build import build_app
from support.servers.database import Database
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker, app_env

#: The private lists with priority 3 come after those of priority 0.
PRIORITY = 3
URGENT, LATER = "celery", f"celery\x06\x16{PRIORITY}"

#: What waits on each list behind the running job, in the order of publishing.
REST = {URGENT: ["n0", "n1", "n2", "late"], LATER: ["p0", "p1", "p2", "p3"]}

#: No heartbeat is due before a scene is over: what the registry learns, it is told at once.
OPTIONS = {"heartbeat_interval": 60.0, "owner_ttl": 300.0}

#: So many jobs may be claimed: one runs, most of the rest is reserved.
PREFETCH = 6

SHUTDOWN = "control shutdown"

#: How the keys begin that exist for owners alone.
OF_OWNERS = tuple(
    f"superfetch:{part}" for part in ("private:", "landing:", "owner", "host:", "reaped")
)


class Scene:
    """One worker with one slot, and its jobs."""

    def __init__(
        self,
        server: Server,
        pool: str,
        directory: Path,
        *,
        superfetch: bool = True,
        conf: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        jobs: bool = True,
        **worker: Any,
    ) -> None:
        self.pool = pool
        self.ledger = Ledger(server.url(LEDGER_DB))
        self.db = Database(redis.Redis.from_url(server.url()))
        self.owner = ""
        about = {
            "ledger_url": self.ledger.url,
            "conf": {"worker_prefetch_multiplier": PREFETCH, **(conf or {})},
        }
        self._stock_env = app_env(server.url(), superfetch=False, **about)
        self._env = app_env(server.url(), superfetch=superfetch, options=OPTIONS, **about)
        self._directory = directory
        self.app = build_app(self._stock_env)
        if jobs:
            self.hold("running")
            self.note("n0", "n1", "n2")
            self.note("p0", "p1", "p2", priority=PRIORITY)
        self.worker = self.start(pool, env=env, **{"concurrency": 1, **worker})

    def start(self, pool: str, env: Mapping[str, str] | None = None, **settings: Any) -> Worker:
        """Another worker for the same queues; the caller closes it."""
        return Worker(
            {**self._env, **(env or {})}, pool=pool, directory=self._directory, **settings
        )

    def hold(self, *names: str, **options: Any) -> None:
        """Publish jobs that run until the ledger releases them."""
        for name in names:
            self.app.tasks["shop.hold"].apply_async((name,), **options)

    def note(self, *names: str, **options: Any) -> None:
        """Publish jobs that end at once."""
        for name in names:
            self.app.tasks["shop.note"].apply_async((name,), **options)

    def says(self, condition: Any, message: str, within: float = 20.0) -> Any:
        """``eventually``, with the name of the pool in what a failure says."""
        return eventually(condition, within, message=f"{self.pool}: {message}")

    # -- the acts

    def settle(self) -> None:
        """Until the job runs, and the rest is where it belongs."""
        self.worker.wait_ready()
        self.says(lambda: "running" in self.ledger.starts(), "the job runs")
        self.note("late")
        self.note("p3", priority=PRIORITY)
        self.says(lambda: self.claimed() >= PREFETCH, "jobs are reserved")
        self.owner = self.db.owner_of("running")

    def claimed(self) -> int:
        """How many jobs the workers hold; stock keeps them in a hash."""
        held = sum(map(len, self.db.held().values()))
        return held + int(self.db.client.hlen("unacked"))  # type: ignore[arg-type]

    def claims(self, job: str) -> bool:
        """Whether a worker holds a job."""
        stock = self.db.client.hvals("unacked")
        return bool(self.db.owner_of(job)) or any(f"('{job}',)" in str(raw) for raw in stock)  # type: ignore[union-attr]

    def tell(self, how: int | str) -> None:
        """Ask the worker to stop."""
        if how == SHUTDOWN:
            self.app.control.shutdown()
        else:
            self.worker.signal(int(how))

    def has_given_back(self, cut: bool = False) -> None:
        """All that waits is back on its list in its old order; a job that was cut leads it."""

        def back() -> bool:
            urgent = self.db.waiting(URGENT)
            led = urgent[:1] == ["running"]  # it goes back last, and so to the front
            found = {URGENT: [n for n in urgent if n != "running"], LATER: self.db.waiting(LATER)}
            if found != REST or led != cut or urgent.count("running") != cut:
                raise AssertionError(f"{urgent}, {found[LATER]}")
            return True

        self.says(back, "what waits is back in its old order")

    def is_stopping(self) -> None:
        """The registry knows, while the job still runs: its next heartbeat is a minute away."""
        self.says(lambda: self.db.fact(self.owner, "state") == "stopping", "it is stopping")
        assert self.worker.alive(), self.pool
        assert self.db.held() == {self.owner: ["running"]}, self.pool
        assert "running" not in self.ledger.finishes(), self.pool

    def release(self) -> None:
        """Let the held jobs come to their end."""
        self.ledger.release()

    def ends(self, code: int | None = 0) -> None:
        """The worker is gone, and left nothing in Redis but the queues."""
        found = self.worker.wait_exit()
        assert code is None or found == code, f"{self.pool}: exit code {found}"
        assert "Error on " not in self.worker.log(), f"{self.pool}: a step of its shutdown failed"
        self.left_nothing()

    def left_nothing(self) -> None:
        """Nothing is left under the owner's name, nor anybody else's."""
        left = [
            key
            for key in self.db.keys("superfetch:*")
            if self.owner in key or key.startswith(OF_OWNERS)
        ]
        assert not left, f"{self.pool}: {left}"
        assert not self.strikes(), self.pool

    # -- the judgement

    def runs(self) -> dict[str, int]:
        """Job -> how often it was started."""
        return self.ledger.runs()

    def ran_once_and_alone(self) -> None:
        """The running job finished, in its only run, and no other has begun."""
        assert self.runs() == {"running": 1}, self.pool
        assert list(self.ledger.finishes()) == ["running"], self.pool

    def was_cut(self) -> None:
        """The running job did not finish, and no other has begun."""
        assert self.runs() == {"running": 1}, self.pool
        assert not self.ledger.finishes(), self.pool

    def strikes(self) -> list[Mapping[str, Any]]:
        """Counters of jobs that got a strike."""
        return [row for row in self.db.counters() if int(row.get("strikes", 0))]

    def plays_out(self, tombstone: bool = False) -> dict[str, int]:
        """A fresh worker runs what is left; how often each was started.

        Arguments:
            tombstone: whether the first worker was reaped; its tombstone stays for a while.
        """
        rest = {"running", *REST[URGENT], *REST[LATER]}
        with self.start("solo", concurrency=1) as heir:
            heir.wait_ready()

            def all_ran() -> bool:
                missing = rest - set(self.ledger.finishes())
                if missing:
                    where = f"{self.db.waiting(URGENT)}, {self.db.waiting(LATER)}"
                    raise AssertionError(f"{missing} of {where}, {self.db.held()}\n{heir.tail()}")
                return True

            self.says(all_ran, "the rest runs elsewhere")
            heir.signal(signal.SIGTERM)
            heir.wait_exit()
        assert not self.db.waiting(URGENT), self.pool
        assert not self.db.held(), self.pool
        if not tombstone:
            self.left_nothing()
        return self.runs()

    def close(self) -> None:
        """End what is left of it."""
        self.worker.close()
        self.app.close()
        self.ledger.close()
        self.db.client.close()
