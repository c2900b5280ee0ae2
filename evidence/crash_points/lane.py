"""Run crash points, one after the other, with one Redis server, three workers whose connections
pass a proxy that harms them, and one worker without harms.

`points.py` runs several lanes at a time. Each is independent of the others.
"""

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

#: Number of workers of the target: one is harmed, one recovers its job, and one is starting.
FLEET = 3
#: Side -> seconds to wait until no message waits. After that the point is written as it is.
PATIENCE = {"ours": 30.0, "stock": 60.0}
#: Seconds between two checks of what is waited for.
LOOK = 0.02
#: If workers sent Celery's heartbeat events, these would be counted among the commands of the job.
QUIET = ("--without-heartbeat",)


class Lane:
    """The server and workers of one side and one pool, as a context manager.

    Arguments:
        side: a name of ``PATIENCE``: the package, or stock Celery without it.
        pool: the pool of the workers that are harmed.
        history: gets the lines of each point.
        without: safeties of the package to remove, with commas.
    """

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
        gc.collect()  # results unsubscribe when they are freed, while the server still runs
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
        """Start a new worker for each that has died."""
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
        """Kill each process that has run a target. Its successor sends more commands, since it has
        to connect first."""
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
        """Wait until so many workers are ready. Raise TimeoutError after 60 s."""
        deadline = time.monotonic() + 60
        while sum(" ready." in worker.log() for worker in self._fleet) < number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"workers do not become ready\n{self._fleet[-1].tail()}")
            time.sleep(LOOK)

    # -- a point

    def run(self, series: Series, nth: int, *, fresh: bool) -> bool:
        """Send a workflow, harm its target once, wait until no message waits, and write what is
        left.

        Arguments:
            series: the shape of the workflow, and the kind and moment of the harm.
            nth: the command of the target's process at which the harm happens, from 1.
            fresh: whether to run the target in a new process, which has no connection yet.

        Return False if the target's process sent fewer than ``nth`` commands: no harm was done.
        """
        self._fill()
        if fresh:
            self._refresh()
        self._wait_for(2)  # one to be harmed, and one that recovers its job
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
        """Wait until two checks in a row find no message queued or in flight. Return the keys that
        still have messages when the patience is over.

        Meanwhile, open the gates: "alone" when all messages of the other queue are settled,
        "settled" when those of the target are, and "harmed" when the harm is done or cannot happen
        any more.
        """
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
        """Return the keys that hold messages: those of the target's queue and workers, and those of
        the other queue and its worker."""
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
        """Return the state of each job of a workflow, by the job's name."""
        jobs = {"target", *SHAPES[shape].steps} - {"target-again"}
        return {job: self._app.backend.get_state(f"{point}-{job}") for job in sorted(jobs)}

    def _error(self, point: str, job: str) -> str:
        """Return the first 200 characters of the error with which a job failed."""
        return repr(self._app.backend.get_result(f"{point}-{job}"))[:200]

    def _left(self) -> list[str]:
        """Return the keys that should not be left, and delete them. If they stayed, they would be
        counted for the next point as well."""
        keys = self._keys()
        left = [key for key in keys if any(re.match(pattern, key) for pattern in LEFT)]
        # Celery lets some keys of a chord expire with the results: these are not left over.
        left = [key for key in left if not (re.match(STAYS, key) and self._redis.ttl(key) > 0)]
        if results := [key for key in keys if key.startswith("celery-task")]:
            self._redis.delete(*results)
        if left:
            self._redis.delete(*left)
        return [re.sub(r"\d+\|[0-9a-f]+", "...", key) for key in left]
