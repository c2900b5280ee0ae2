"""A drill: sends jobs that only sleep, and watches in Redis when they run again after their worker
was killed.

`superfetch drill` (``console/commands/drill.py``) makes a ``Drill`` and kills the worker. If the
command dies, the jobs sleep and end, or expire.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from celery import Celery

from ..inspector import RUNNING, Inspector
from ..model.config import DRILL_HEADER, DRILL_TASK
from ..model.owner_record import OwnerRecord
from ..model.process import ProcessImage
from ..model.worker_process import Process, has_socket, worker_at
from .jobs import JobsSnapshot, Which
from .overview import state_of

DRILL_LOOK_S = 0.25  # seconds between two looks

#: Stock Celery's own, where the app sets none (kombu's ``visibility_timeout``), in seconds.
VISIBILITY_TIMEOUT = 3600.0


@dataclass
class DrillRun:
    """A job of the drill: the worker that had it, and its fate after the kill."""

    id: str
    node: str | None = None
    #: Seconds until it had left the dead worker's private list, for its queue or another worker.
    recovered: float | None = None
    #: True if it ended in that worker, which was not killed in time.
    ended: bool = False
    again: str | None = None  # the worker that runs it again
    after: float | None = None  # seconds until that worker began; it may have had no free slot


@dataclass
class Drill:
    """``jobs`` that run for ``seconds`` each, on a queue. Call ``send``, ``find_victim``, ``aim``,
    kill it, and ``wait_again``, in this order."""

    app: Celery
    inspector: Inspector
    queue: str
    jobs: int
    seconds: float
    runs: dict[str, DrillRun] = field(default_factory=dict)
    record: OwnerRecord = field(init=False)  # of the victim
    digests: dict[str, str] = field(default_factory=dict)  # id -> digest, by which a job is counted

    def send(self, patience: float) -> None:
        """Send the jobs. They expire once neither a first run nor a second can begin any more."""
        expires = 2 * patience + self.seconds
        for _ in range(self.jobs):
            id = str(uuid4())
            self.runs[id] = DrillRun(id)
            self.app.send_task(
                DRILL_TASK,
                (self.seconds,),
                task_id=id,
                queue=self.queue,
                expires=expires,
                headers={DRILL_HEADER: True},
            )

    def find_victim(self, patience: float) -> bool:
        """Return whether a worker runs some of the jobs within ``patience`` seconds. The victim is
        a worker of this host, if one runs some; of several, the one that runs most."""
        for _ in _looks(patience):
            owners = Counter(row["owner"] for row in self._running().values())
            workers = [record for record, _, _ in self.inspector.judged() if record.owner in owners]
            if workers:
                self.record = max(
                    workers, key=lambda record: (is_here(record), owners[record.owner])
                )
                return True
        return False

    def aim(self) -> int:
        """Return how many jobs of the drill the victim runs now; only these count from here on."""
        hit = [row for row in self._running().values() if row["owner"] == self.record.owner]
        self.runs = {row["id"]: DrillRun(row["id"], row["node"]) for row in hit}
        self.digests = {row["id"]: row["digest"] for row in hit}
        return len(hit)

    def target(self) -> tuple[Process, bool]:
        """Return the process of this host that is to be killed, and whether the server confirms
        that it is the victim: a connection of the victim is a socket of this process. Raises as
        ``worker_at``."""
        process = worker_at(self.record.process)
        return process, has_socket(process, self.inspector.registry.addresses(self.record))

    def innocents(self) -> list[dict[str, Any]]:
        """Return the other jobs that the victim runs."""
        rows = self._rows(Which(state=RUNNING, node=self.record.node))
        rows = [row for row in rows if row["owner"] == self.record.owner]
        return [row for row in rows if row["task"] != DRILL_TASK]

    def others(self) -> int:
        """Return how many other living workers claim jobs from the queue."""
        return len(self.consumers() - {self.record.owner})

    def consumers(self) -> set[str]:
        """Return the owners that consume the queue and start jobs: no stopping, hung or stale
        one."""
        now = self.inspector.database.server_time()
        return {
            record.owner
            for record, score, verdict in self.inspector.judged()
            if not verdict.dead
            and state_of(record, max(0, now - score) / 1000) == "running"
            and self.queue in {*record.lists} - {*record.unconsumed}
        }

    def wait_again(self, patience: float, on_rerun: Callable[[DrillRun], object]) -> bool:
        """Watch the jobs for ``patience`` seconds, or until all run again (in another worker, or in
        one that was started again) or have ended; call ``on_rerun`` with each when it runs. Return
        whether all were recovered: one may still wait for a slot that the drill's other jobs have.
        """
        began, rows = time.monotonic(), dict[str, dict[str, Any]]()
        for _ in _looks(patience):
            rows, recovered = self._in_flight(), self._recovered()
            seconds = round(time.monotonic() - began, 1)
            for run in self.runs.values():
                row = rows.get(run.id, {"owner": self.record.owner})
                is_elsewhere = row["owner"] != self.record.owner
                if run.recovered is None and (is_elsewhere or run.id in recovered):
                    run.recovered = seconds
                if run.after is None and is_elsewhere and row["state"] == RUNNING:
                    run.again, run.after = row["node"], seconds
                    on_rerun(run)
            if all(run.after is not None for run in self.runs.values()):
                break
            if seconds > self.seconds and not any(
                id in rows or id in recovered for id in self.runs
            ):
                break  # none runs that long, so they have ended
        for run in self.runs.values():
            run.ended = run.recovered is None and run.id not in rows
        return all(run.recovered is not None for run in self.runs.values())

    def _recovered(self) -> set[str]:
        """Return the ids of jobs with a recovery: they run again, or wait on their queue."""
        counters = self.inspector.strikes.counters([*self.digests.values()])
        rows = zip(self.digests, counters, strict=True)
        return {id for id, counted in rows if counted.recoveries}

    @property
    def stock(self) -> float:
        """Seconds after which stock Celery, with late ack, would requeue such jobs."""
        options = self.app.conf.broker_transport_options or {}
        return float(options.get("visibility_timeout", VISIBILITY_TIMEOUT))

    def _running(self) -> dict[str, dict[str, Any]]:
        """Return the jobs of this drill that run: id -> row."""
        rows = self._rows(Which(state=RUNNING, task=DRILL_TASK))
        return {row["id"]: row for row in rows if row["id"] in self.runs}

    def _in_flight(self) -> dict[str, dict[str, Any]]:
        """Return the jobs of this drill that a worker has claimed: id -> row."""
        return {row["id"]: row for row in self._rows(Which(task=DRILL_TASK)) if row["owner"]}

    def _rows(self, which: Which) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = JobsSnapshot(self.inspector, which).first(10_000)["jobs"]
        return rows


def is_here(record: OwnerRecord) -> bool:
    """Return whether the worker's pid means the same to this process."""
    return ProcessImage.current().is_local_to(record.process)


def _looks(patience: float) -> Iterator[None]:
    """Yield every ``DRILL_LOOK_S`` s, for ``patience`` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        yield
        time.sleep(DRILL_LOOK_S)
