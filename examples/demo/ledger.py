"""What really ran, written down by the tasks themselves and by nobody else."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from typing import Any

import redis


@dataclass
class Run:
    """One run of one job; a job that was cut short has more than one."""

    job: str
    #: Pids of the worker's MainProcess and of its pool process.
    worker: int
    pool_process: int
    started: float
    #: How long it means to take.
    seconds: float
    finished: float | None = None

    def left(self, now: float) -> float:
        """Seconds until it means to finish."""
        return self.started + self.seconds - now


class Book:
    """The writing side: a list in Redis that only grows."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client = client
        self.key = key

    def started(self, job: str, seconds: float) -> str:
        """Note the start of a run; its name, for `finished`."""
        run = secrets.token_hex(6)
        worker, pool_process = os.getppid(), os.getpid()
        self._write(run, job=job, worker=worker, pool_process=pool_process, seconds=seconds)
        return run

    def finished(self, run: str) -> None:
        """Note the end of a run: the last thing a job does."""
        self._write(run)

    def _write(self, run: str, **about: Any) -> None:
        self.client.rpush(self.key, json.dumps({"run": run, "at": time.time(), **about}))


class Ledger:
    """The reading side: reads on from where it stopped last."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client = client
        self.key = key
        self._lines = 0
        self._runs: dict[str, Run] = {}

    def read(self) -> list[Run]:
        """All runs so far, in the order in which they started."""
        lines: Any = self.client.lrange(self.key, self._lines, -1)
        self._lines += len(lines)
        for line in lines:
            entry = json.loads(line)
            name, at = entry.pop("run"), entry.pop("at")
            if entry:
                self._runs[name] = Run(started=at, **entry)
            else:
                self._runs[name].finished = at
        return list(self._runs.values())
