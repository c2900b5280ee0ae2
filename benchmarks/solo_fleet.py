"""Hundreds of real solo workers on one machine: their cost at rest, and the cost of their death.

    python benchmarks/solo_fleet.py [--workers 300] [--survivors 20] [--queues 20] [--jobs 200]
        [--only superfetch] [--json]

celery_superfetch is compared with stock. Each worker is a process of `celery worker`, forked from
one that has imported the app, so that they share its memory; it consumes all queues. For each
contender, on a server of its own:

- at rest, for ``AT_REST`` seconds: connections of a worker, CPU of the server, CPU of a worker.
- the delay of a job from publishing to the first line of the task: jobs come one by one to queues
  chosen at random.

Then ``--workers`` of them are killed at once, ``--survivors`` live on, and jobs come to all queues
for ``AFTER`` seconds: the longest delay of these jobs, and how many never run. Stock's workers are
not killed: a job that a dead one holds waits for an hour.

Distorted by: other processes on the machine (CPU and delays; not connections); all workers share
its cores, so that a job's delay is longer than in a fleet of many machines. Takes: five minutes.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from compare import OURS, STOCK, Row, Table, arguments, begin, finish
from noop import NAME, build

from support.process import Process
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import process_env

#: Seconds until a fleet that has started sends only what an idle one sends.
CALM = 15.0
#: Seconds in which the CPU is measured.
AT_REST = 20.0
#: Seconds between two jobs.
GAP = 0.05
#: Seconds after the kill in which jobs come.
AFTER = 5.0
PATIENCE = 300.0
FORK = "--fork"


def fork_workers(count: int, queues: str) -> None:
    """Fork ``count`` workers, each of which runs `celery worker`; wait until this is killed."""
    import benchmarks.noop as noop

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the killed ones leave no zombies
    for _ in range(count):
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            flags = ["--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat"]
            name = f"--hostname=w{os.getpid()}@%h"
            noop.app.worker_main(["worker", *flags, name, f"--queues={queues}", "--loglevel=ERROR"])
            os._exit(0)
        time.sleep(0.05)  # all at once would only wait for each other
    while True:
        signal.pause()


class Fleet:
    """Solo workers on a server of their own, some of which are to be killed."""

    def __init__(self, contender: str, args: Any, stack: ExitStack) -> None:
        self.queues = [f"{NAME}-{n:02}" for n in range(args.queues)]
        self._stack = stack
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.server = stack.enter_context(Server())
        self.client = self.server.client()
        self._times = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._times.bind(str(self._directory / "times"))
        self._waits: queue.Queue[float] = queue.Queue()
        threading.Thread(target=self._receive, daemon=True).start()
        self._app = build(contender, self.server.url())
        stack.callback(self._app.close)
        self._contender = contender
        self.victims = self._start(args.workers)
        self.survivors = self._start(args.survivors)
        count = args.workers + args.survivors
        eventually(lambda: self._listening() >= count, PATIENCE, 0.5, message=f"{count} workers")

    def _start(self, count: int) -> Process:
        argv = [sys.executable, __file__, FORK, str(count), ",".join(self.queues)]
        env = {
            "CONTENDER": self._contender,
            "BROKER_URL": self.server.url(),
            "TOLD": str(self._directory / "times"),
        }
        log = self._directory / f"log-{count}-{time.monotonic()}"
        process = Process(argv, log=log, env=process_env(env), cwd=Path.cwd(), title="solo fleet")
        self._stack.callback(process.close)
        return process

    def _listening(self) -> int:
        """Return the number of workers that listen to remote control: they have started."""
        return sum(int(row["psub"]) or int(row["sub"]) for row in self.client.client_list())

    def connections(self) -> int:
        return len(self.client.client_list()) - 1

    def spent(self) -> tuple[float, float]:
        """Return seconds of CPU: of the server, of all workers."""
        used = self.client.info("cpu")
        workers = [*self.victims.children(), *self.survivors.children()]
        times = [process.cpu_times() for process in workers]
        return used["used_cpu_user"] + used["used_cpu_sys"], sum(t.user + t.system for t in times)

    def publish(self, name: str) -> None:
        self._app.tasks["bench.told"].apply_async((time.monotonic(),), queue=name)

    def waits(self, count: int, timeout: float) -> Iterator[float]:
        """Yield the waits (s) of ``count`` jobs, or of those before one longer than ``timeout``."""
        for _ in range(count):
            try:
                yield self._waits.get(timeout=timeout)
            except queue.Empty:
                return

    def _receive(self) -> None:
        """Receive waits at once: if ten datagrams are unread, the worker of the next blocks."""
        while raw := self._times.recv(8):
            self._waits.put(struct.unpack("d", raw)[0])

    def kill(self) -> int:
        """Kill the victims; return their number."""
        dying: list[psutil.Process] = self.victims.children()
        for process in dying:
            process.kill()
        return len(dying)


def run(contender: str, args: Any) -> list[float | None]:
    """Measure a contender; return a value for each table, None where it is not measured."""
    with ExitStack() as stack:
        fleet = Fleet(contender, args, stack)
        count = args.workers + args.survivors
        time.sleep(CALM)
        server, workers = fleet.spent()
        time.sleep(AT_REST)
        server_after, workers_after = fleet.spent()
        values: list[float | None] = [
            fleet.connections() / count,
            (server_after - server) / AT_REST * 100,
            (workers_after - workers) / AT_REST * 100 / count,
        ]
        chosen = random.Random(count)
        waits = []
        for _ in range(args.jobs):
            fleet.publish(chosen.choice(fleet.queues))
            waits += fleet.waits(1, PATIENCE)
            time.sleep(GAP)
        values += [statistics.median(waits) * 1000, sorted(waits)[int(len(waits) * 0.99)] * 1000]
        if contender != OURS:
            return [*values, None, None]
        assert fleet.kill() == args.workers
        sent, end = 0, time.monotonic() + AFTER
        while time.monotonic() < end:
            for name in fleet.queues:
                fleet.publish(name)
                time.sleep(GAP / 4)
            sent += len(fleet.queues)
        waits = list(fleet.waits(sent, 60.0))
        return [*values, max(waits), float(sent - len(waits))]


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--workers", type=int, default=300, help="to be killed")
    parser.add_argument("--survivors", type=int, default=20)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    args = parser.parse_args(argv)
    tables = [
        Table("connections of a worker", "open", more=False),
        Table("the server's CPU at rest", "% of a core", more=False),
        Table("a worker's CPU at rest", "% of a core", more=False),
        Table("a job's wait, median", "ms", more=False),
        Table("a job's wait, 99th percentile", "ms", more=False),
        Table("after the kill: the longest wait", "s", more=False),
        Table("after the kill: jobs never run", "jobs", more=False),
    ]
    begin(tables[0])
    names = [name for name in (OURS, STOCK) if args.only in name]
    case = f"{args.workers} + {args.survivors} workers, {args.queues} queues"
    rows = [Row(case, {name: [] for name in names}) for _ in tables]
    for _ in range(args.rounds):
        for name in names:
            for row, value in zip(rows, run(name, args), strict=True):
                if value is not None:
                    row.values[name].append(value)
    for table, row in zip(tables, rows, strict=True):
        row.values = {name: values for name, values in row.values.items() if values}
        table.rows.append(row)
        print(f"{table.title:36}{table.line(row)}", flush=True)
    finish(args, tables)


if __name__ == "__main__":
    if FORK in sys.argv:
        fork_workers(int(sys.argv[2]), sys.argv[3])
    else:
        main()
