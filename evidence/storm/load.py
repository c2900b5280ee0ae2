"""Who sends the storm's jobs, all kinds in a mix that the seed decides."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, chain, chord

from ..history import History
from .tasks import PILL_RUNS

#: The queue that one solo worker serves.
ORDERED = "ordered"

#: Kind -> how many of a thousand messages to send.
MIX = {
    "plain": 560,
    "long": 20,
    "priority": 100,
    "ordered": 100,
    "eta": 80,
    "retry": 60,
    "chain": 40,
    "chord": 39,
    "poison": 1,
}
PARTS = 3


class Load:
    """Sends until it is stopped; use as a context manager."""

    def __init__(self, app: Celery, history: History, seed: int, rate: float) -> None:
        self.app, self.history = app, history
        self.sent = 0
        #: (job, step) of all that has a result.
        self.steps: list[tuple[str, str]] = []
        self._dice = random.Random(seed)
        self._pause = 1 / rate
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            # One that could not send for a while does not catch up all at once.
            due = max(due + self._pause, time.monotonic() - 1)
            kind = self._dice.choices(list(MIX), list(MIX.values()))[0]
            job = f"j{self.sent}"
            self.sent += 1
            # At the same time for all kinds, so that the kinds of later ones do not depend on it.
            facts, send = getattr(self, f"_{kind}", self._plain)(kind, job)
            began = time.time()
            try:
                send()
            except Exception as exc:
                facts["doubt"] = type(exc).__name__
            line = {"kind": kind, "job": job, **facts, "at": round(began, 4)}
            self.history.write("send", **line)
            if "doubt" not in facts:
                self.steps += [(job, name) for name in facts["steps"] if "#" not in name]

    # -- what is sent, by its kind

    def _step(self, job: str, step: str, **settings: Any) -> Any:
        """A signature, sent without Celery's own tries: an error leaves it open what arrived."""
        settings = {"seconds": round(self._dice.uniform(0, 0.03), 3), **settings}
        signature = self.app.tasks["storm.step"].s(job=job, step=step, **settings)
        return signature.set(task_id=f"{job}:{step}", retry=False)

    def _plain(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"]}, self._step(job, "run").apply_async

    def _long(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"]}, self._step(job, "run", seconds=2.0).apply_async

    def _priority(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        step = self._step(job, "run").set(priority=self._dice.choice((3, 6, 9)))
        return {"steps": ["run"]}, step.apply_async

    def _ordered(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        facts = {"steps": ["run"], "order": ORDERED}
        return facts, self._step(job, "run", seconds=0).set(queue=ORDERED).apply_async

    def _eta(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        due, step = time.time() + self._dice.uniform(1, 15), self._step(job, "run")
        eta = self.app.now().fromtimestamp(due, self.app.timezone)
        return {"steps": ["run"], "due": due}, step.set(eta=eta).apply_async

    # Celery stores that a job is retried after it has sent the retry. What comes at once may end
    # before that. With stock it is told of as RETRY for ever then.
    def _retry(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        step = self._step(job, "run", act="retry", later=self._dice.choice((0, 2, 5)))
        return {"steps": ["run", "run#1"]}, step.apply_async

    def _chain(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        steps = ["a", "b", "c"]
        return {"steps": steps}, chain(self._step(job, step) for step in steps).apply_async

    def _chord(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        parts = [f"p{number}" for number in range(PARTS)]
        body = self._step(job, "body")
        facts = {"steps": [*parts, "body"], "parts": PARTS, "values": parts}
        return facts, lambda: chord(self._step(job, part) for part in parts)(body)

    def _poison(self, kind: str, job: str) -> tuple[dict[str, Any], Callable[[], Any]]:
        return {"steps": ["run"], "pill": PILL_RUNS}, self._step(job, "run", act="kill").apply_async
