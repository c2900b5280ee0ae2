"""App of the benchmarks with real workers: a task that does nothing, on a contender's transport.

``CONTENDER`` in the environment names the contender. The processes of a worker count the commands
that they send themselves, since the server's counts include the calls of scripts. Each process
writes to its own slot of the file ``COUNTS``, so that reading it costs the worker nothing.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

# A worker imports it from the project's root, as benchmarks.noop.
sys.path.append(str(Path(__file__).resolve().parent))

from celery import Celery
from compare import fetch_as
from redis import Redis
from sent import watch_sent

NAME = "bench"
#: One process's slot: its pid, commands sent, sends.
SLOT = struct.Struct("qqq")
SLOTS = 256


class Counts:
    """Counts of what some processes have sent: commands, and sends (a pipeline is one)."""

    def __init__(self, path: Path) -> None:
        with path.open("ab") as file:
            file.truncate(SLOT.size * SLOTS)
        with path.open("r+b") as file:
            self._file = mmap.mmap(file.fileno(), 0)
        self._begin()

    def _begin(self) -> None:
        self._commands, self._sends = itertools.count(1), itertools.count(1)
        self._seen = (0, 0)

    def read(self) -> dict[int, tuple[int, int]]:
        """Return process id -> commands and sends so far."""
        rows = SLOT.iter_unpack(self._file[:])
        return {pid: (commands, sends) for pid, commands, sends in rows if pid}

    def patch(self) -> None:
        """Count what this process and its children send from here on."""
        os.register_at_fork(after_in_child=self._begin)
        watch_sent(self._note)

    def _note(self, commands: int, sends: int) -> None:
        # ``next`` is one step for all threads, which ``+=`` is not.
        for _ in range(commands):
            self._seen = (next(self._commands), self._seen[1])
        for _ in range(sends):
            self._seen = (self._seen[0], next(self._sends))
        pid = os.getpid()
        # The kernel gives pids one after another: two that share a slot are rare, and far apart.
        SLOT.pack_into(self._file, pid % SLOTS * SLOT.size, pid, *self._seen)


def build(
    contender: str,
    url: str,
    prefetch: int = 4,
    prefix: str = "",
    results: bool = False,
    **options: Any,
) -> Celery:
    """Build the same app for each contender, up to the transport; its ``results`` are on its
    server."""
    app = Celery(NAME, broker=url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_ignore_result=not results,
        result_backend=url if results else None,
        task_default_queue=NAME,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=prefetch,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"global_keyprefix": prefix, **options},
    )
    fetch_as(app, contender)
    app.task(name="bench.noop", shared=False)(noop)
    app.task(name="bench.told", shared=False)(told)
    app.finalize()
    return app


def noop() -> None:
    """Do nothing: only what surrounds it is measured."""


_teller = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def told(sent: float, filler: str = "") -> None:
    """Report how long ago it was published, by the machine's clock; ``filler`` makes it large."""
    _teller.sendto(struct.pack("d", time.monotonic() - sent), os.environ["TOLD"])


def run_rq(url: str) -> None:
    """Run an RQ worker whose jobs run in its main process, as with Celery's solo pool."""
    from rq import Queue, SimpleWorker

    client = Redis.from_url(url)
    SimpleWorker([Queue(NAME, connection=client)], connection=client).work(logging_level="ERROR")


if "COUNTS" in os.environ:
    Counts(Path(os.environ["COUNTS"])).patch()
if "CONTENDER" in os.environ:
    app = build(
        os.environ["CONTENDER"],
        os.environ["BROKER_URL"],
        int(os.environ.get("PREFETCH", "4")),
        os.environ.get("PREFIX", ""),
        "RESULTS" in os.environ,
        **json.loads(os.environ.get("OPTIONS", "{}")),
    )
