"""What really ran, written down by the tasks themselves, apart from everything under test."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, cast

import redis

LEDGER_DB = 9


class Ledger:
    """An append-only list of "started" and "finished" lines in a database of its own.

    Arguments:
        notes: written into each line, beside who wrote it.
    """

    key = "ledger"

    def __init__(self, url: str, **notes: str) -> None:
        self.url = url
        self.notes = notes
        self._redis = redis.Redis.from_url(url, decode_responses=True)

    # -- written by tasks --------------------------------------------------------------------

    def started(self, job: str) -> None:
        self._write("started", job)

    def finished(self, job: str) -> None:
        self._write("finished", job)

    def gave_up(self, job: str, why: str) -> None:
        """The run ended on purpose, and the job is not done: "rejected", "retried"."""
        self._write(why, job)

    def first(self, what: str) -> bool:
        """True for the first who asks."""
        return bool(self._redis.set(f"first:{what}", 1, nx=True))

    def released(self, job: str) -> bool:
        """Whether the test has told a held job to go on. A lost connection is not a word of it."""
        try:
            return bool(self._redis.exists(f"release:{job}", "release:all"))
        except redis.ConnectionError:
            return False

    def _write(self, event: str, job: str) -> None:
        line = {
            "event": event,
            "job": job,
            "at": time.time(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            **self.notes,
        }
        self._redis.rpush(self.key, json.dumps(line))

    # -- read by tests -----------------------------------------------------------------------

    def release(self, job: str = "all") -> None:
        self._redis.set(f"release:{job}", 1)

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Every line in the order of writing, with the pid and host that wrote it."""
        raw = cast("list[str]", self._redis.lrange(self.key, 0, -1))
        # One that was sent again, since the connection was lost before the reply, is there twice.
        lines = [json.loads(line) for line in dict.fromkeys(raw)]
        return [line for line in lines if event is None or line["event"] == event]

    def told(self, event: str) -> list[str]:
        """Of which jobs it was said."""
        return [line["job"] for line in self.lines(event)]

    def starts(self) -> dict[str, list[float]]:
        """Job -> when its runs began. More than one time: it ran more than once."""
        return self._times("started")

    def runs(self) -> dict[str, int]:
        """Job -> how often it was started."""
        return {job: len(times) for job, times in self.starts().items()}

    def finishes(self) -> dict[str, list[float]]:
        """Job -> when its runs came to their end."""
        return self._times("finished")

    def _times(self, event: str) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {}
        for line in self.lines(event):
            times.setdefault(line["job"], []).append(line["at"])
        return times

    def clear(self) -> None:
        self._redis.flushdb()

    def close(self) -> None:
        self._redis.close()
