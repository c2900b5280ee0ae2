"""A server, workers that are harmed behind a proxy, and one that is not: where points are run."""

from __future__ import annotations

import gc
import re
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.servers.server import Server
from support.workers.worker import Worker

from ..history import History
from .processes import is_gone
from .proxy import Harm, Proxy
from .series import Series
from .shapes import LEFT, REST, SHAPES, STAYS, TARGET, workflow
from .tasks import build

#: Workers of the target: one is harmed, another takes over, and the next is starting.
FLEET = 3
#: Seconds until what has not come to rest is written down as it is.
PATIENCE = {"ours": 30.0, "stock": 60.0}
LOOK = 0.02
#: Celery's own chatter would be counted among the commands.
QUIET = ("--without-heartbeat",)


class Lane:
    """One side (ours or stock) with one pool. Use as a context manager."""

    def __init__(self, side: str, pool: str, history: History, without: str = "") -> None:
        self.side, self.pool = side, pool
        self._history = history
        self._without = without
        self._stack = ExitStack()
        self._fleet: list[Worker] = []

    def __enter__(self) -> Lane:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="evidence-")))
        server = self._stack.enter_context(Server())
        self._redis = server.client(decode_responses=True)
        self._proxy = self._stack.enter_context(Proxy(server.port, folder / "side", self._history))
        self._env = {
            "SIDE": self.side,
            "WITHOUT": self._without,
            "EVIDENCE_SIDE": str(self._proxy.side),
            "BROKER_URL": server.url(),
        }
        self._app = build(self._env)
        self._stack.callback(self._app.close)
        self._folder = folder
        self._rest = self._stack.enter_context(self._worker(REST, "threads", 8, self._env))
        self._fill()
        self._rest.wait_ready()
        for worker in self._fleet:
            worker.wait_ready()
        return self

    def __exit__(self, *error: Any) -> None:
        gc.collect()  # results have a farewell to say to the server
        for worker in self._fleet:
            worker.close()
        self._stack.__exit__(*error)

    def _worker(self, queue: str, pool: str, size: int, env: dict[str, str]) -> Worker:
        return Worker(
            env,
            app="evidence.crash_points.worker",
            pool=pool,
            concurrency=size,
            queues=[queue],
            args=QUIET,
            directory=self._folder,
        )

    def _fill(self) -> None:
        """Put a new worker where one has died."""
        for worker in [one for one in self._fleet if not one.alive()]:
            worker.close()
            self._fleet.remove(worker)
        while len(self._fleet) < FLEET:
            url = f"redis://127.0.0.1:{self._proxy.port}/0"
            env = {**self._env, "BROKER_URL": url, "HARMED": "1"}
            worker = self._worker(TARGET, self.pool, 1, env)
            self._fleet.append(worker)
            self._proxy.workers.add(worker.pid)

    def _refresh(self) -> None:
        """End each process that has run a target: a new one sends more, since it connects."""
        for worker in self._fleet:
            if worker.pid in self._proxy.warm:
                worker.kill9_all()
                worker.wait_gone()
            for child in worker.children():
                if child.pid in self._proxy.warm:
                    child.kill()
                    is_gone(child.pid)
        self._fill()
        self._wait_for(FLEET)

    def _wait_for(self, number: int) -> None:
        """Until so many workers are ready."""
        deadline = time.monotonic() + 60
        while sum(" ready." in worker.log() for worker in self._fleet) < number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"workers do not become ready\n{self._fleet[-1].tail()}")
            time.sleep(LOOK)

    # -- a point

    def run(self, series: Series, nth: int, *, fresh: bool) -> bool:
        """Harm the target of a workflow once, wait until all is at rest, and write down what is
        left. False if the target's process never came to its nth command."""
        self._fill()
        if fresh:
            self._refresh()
        self._wait_for(2)  # one to be harmed, and one to take over
        point = series.point(nth, fresh)
        harm = Harm(point, series.kind, series.moment, nth)
        self._proxy.begin(harm)
        self._history.write(
            "send",
            point=point,
            side=self.side,
            pool=self.pool,
            shape=series.shape,
            kind=series.kind,
            moment=series.moment,
            nth=nth,
        )
        workflow(self._app, series.shape, point).apply_async()
        waits = self._settle(harm)
        self._proxy.begin(Harm("", "", "", 0))
        states = self._states(series.shape, point)
        self._history.write(
            "rest",
            point=point,
            hit=harm.done,
            commands=harm.seen,
            waits=waits,
            states=states,
            errors={job: self._error(point, job) for job in states if states[job] == "FAILURE"},
            left=self._left(),
        )
        if harm.done and harm.kind == "worker":
            self._fill()
        return harm.done

    def _settle(self, harm: Harm) -> list[str]:
        """Until no message waits and none is in flight, seen twice; what still waits, else."""
        deadline = time.monotonic() + PATIENCE[self.side]
        calm = 0
        while calm < 2 and time.monotonic() < deadline:
            time.sleep(LOOK)
            target, rest = self._waiting()
            if not rest:
                self._proxy.open("alone")
            if not target:
                self._proxy.open("settled")
            if harm.done or not target:
                self._proxy.open("harmed")
            calm = 0 if target or rest else calm + 1
        return [*target, *rest] if calm < 2 else []

    def _waiting(self) -> tuple[list[str], list[str]]:
        """Keys that hold messages: of the target's queue and workers, and of the others'."""
        target, rest = [], []
        for key in self._keys():
            name = key.split("\x06")[0]
            if name == REST or key == "unacked_rest" or f"|{self._rest.pid}|" in key:
                if re.search(r"^rest|^unacked_rest$|:(private|landing):", key):
                    rest.append(key)
            elif name == TARGET or re.search(
                r"^unacked$|:(private|landing|probation|parked):", key
            ):
                target.append(key)
        return target, rest

    def _keys(self) -> list[str]:
        keys: Any = self._redis.keys("*")
        return sorted(keys)

    def _states(self, shape: str, point: str) -> dict[str, str]:
        jobs = {"target", *SHAPES[shape].steps} - {"target-again"}
        return {job: self._app.backend.get_state(f"{point}-{job}") for job in sorted(jobs)}

    def _error(self, point: str, job: str) -> str:
        return repr(self._app.backend.get_result(f"{point}-{job}"))[:200]

    def _left(self) -> list[str]:
        """What should not be there any more; gone now, so that the next point begins clean."""
        keys = self._keys()
        left = [key for key in keys if any(re.match(pattern, key) for pattern in LEFT)]
        # What expires with the results is Celery's own way to clear up.
        left = [key for key in left if not (re.match(STAYS, key) and self._redis.ttl(key) > 0)]
        if results := [key for key in keys if key.startswith("celery-task")]:
            self._redis.delete(*results)
        if left:
            self._redis.delete(*left)
        return [re.sub(r"\d+\|[0-9a-f]+", "...", key) for key in left]
