"""Everything the story acts with: processes, eyes, ledger and screen; and how it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from . import app as demo
from .children import Child, Children, DemoError
from .ledger import Ledger, Run
from .observer import Observer
from .screen import Row, Screen, View

T = TypeVar("T")

#: Seconds between two looks at ledger and Redis.
LOOK = 0.05


class Stage:
    """What the two stories share: the processes, and one way to wait that shows progress."""

    def __init__(self, client: redis.Redis, children: Children, screen: Screen) -> None:
        self.children = children
        self.screen = screen
        self.observer = Observer(demo.app, client)
        self.ledger = Ledger(client, f"{demo.PREFIX}ledger")
        self.runs: list[Run] = []
        self.enqueued: list[str] = []
        self.killed: set[Child] = set()
        self.workers: list[Child] = []

    def until(self, what: str, within: float, look: Callable[[], T]) -> T:
        """Return the first truthy value of `look`, showing progress meanwhile.

        Raises:
            DemoError: not within so many seconds, or a process has ended that should live.
        """
        deadline = time.monotonic() + within
        while True:
            for child in self.children.started:
                if child not in self.killed:
                    child.check()
            try:
                self.runs = self.ledger.read()
                value = look()
                self.screen.show(self._view())
            except redis.RedisError as exc:
                raise DemoError(f"the server cannot be used any more: {exc}") from exc
            if value:
                return value
            if time.monotonic() >= deadline:
                logs = "\n".join(f"{w.title}, end of log:\n{w.tail()}" for w in self.workers)
                raise DemoError(f"waited {within:g} s in vain until {what}.\n{logs}")
            time.sleep(LOOK)

    # -- what the ledger says

    def finished(self) -> set[str]:
        return {run.job for run in self.runs if run.finished is not None}

    def running_in(self, worker: Child) -> list[Run]:
        """Runs in a worker that have not finished; after its death: that were cut short."""
        return [run for run in self.runs if run.worker == worker.pid and run.finished is None]

    def runs_of(self, job: str) -> list[Run]:
        return [run for run in self.runs if run.job == job]

    def _view(self) -> View:
        view = View(
            waiting=self.observer.waiting(),
            finished=len(self.finished()),
            total=sum(job != "poison" for job in self.enqueued),
        )
        owners = {}
        if not demo.STOCK:
            owners = {int(o.split("|")[1]): o for o in self.observer.registry.owners()}
        sizes = self.observer.in_flight(*owners.values()) if owners else {}
        for child in self.children.started:
            row = Row(child.title, "killed" if child in self.killed else "running")
            if child in self.workers:
                row.in_flight = sizes.get(owners.get(child.pid, ""))
                row.finished = sum(
                    run.worker == child.pid and run.finished is not None for run in self.runs
                )
                running = [run for run in self.running_in(child) if run.job != "poison"]
                row.running = 0 if child in self.killed else len(running)
            view.rows.append(row)
        return view
