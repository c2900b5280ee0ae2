"""Commands that a worker sends for one job while idle, and calls that Redis executes for it.

    python benchmarks/lone_job.py [--only solo] [--rounds 1] [--jobs 100] [--before ../other]
        [--json]

celery_superfetch is compared with stock and celery-redis-plus. Jobs that do nothing are published
one by one to an idle worker of each contender in turn, each when the worker waits again:

- sent: commands that the worker sends for a job. A script is one.
- executed: calls that the server makes for it, including those within scripts and the producer's
  LPUSH (``total_commands_processed``).

The commands of the same worker in the same time without jobs, measured before, are subtracted.
Heartbeats come once a minute here, so that none falls into that time; the prefetch multiplier is 4.

The aims: three commands sent on each pool, and no more calls executed than with stock.

Distorted by: hardly anything, since all values are counts. On a very busy machine a worker may not
wait yet when its next job comes. Takes: nine minutes.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compare import TRANSPORTS, Row, Table, arguments, begin, finish, skipped_here
from noop import NAME, Counts, build
from worker import POOLS, Drain

#: Seconds from the start of a job until its worker has acked it and waits.
REST = 0.1
#: Seconds in which an idle worker renews each of its waits once.
IDLE = 21.0
#: Seconds until a worker that has started sends only what an idle one sends.
CALM = 3.0
#: Seconds within which a job that was sent has started, or something is wrong.
PATIENCE = 10

#: No heartbeat and no reap pass is due while jobs are counted.
OPTIONS = {"heartbeat_interval": 60, "owner_ttl": 600, "reap_interval": 600}

#: Case -> pool, and number of queues.
CASES = {
    **{pool: (pool, 1) for pool in POOLS},
    "solo, 4 queues": ("solo", 4),
    "prefork, 4 queues": ("prefork", 4),
    "solo, 20 queues": ("solo", 20),
    "prefork, 20 queues": ("prefork", 20),
}


class Lone(Drain):
    """Worker that is idle between its jobs."""

    def __init__(self, contender: str, pool: str, queues: int, stack: ExitStack) -> None:
        super().__init__(contender, pool, 4, 1)
        self.queues = [NAME, *(f"{NAME}-{n}" for n in range(1, queues))]
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, url = stack.enter_context(self.serving())
        self.client = server.client()
        self.counts = Counts(directory / "counts")
        self._told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._told.bind(str(directory / "told"))
        self._told.settimeout(PATIENCE)
        self.env = {"TOLD": str(directory / "told"), "OPTIONS": json.dumps(OPTIONS)}
        self.worker = self.start(url, directory)
        stack.callback(self.worker.close)
        app = build(contender, url)
        stack.callback(app.close)
        self._task = app.tasks["bench.told"]
        self._producer = stack.enter_context(app.producer_or_acquire())

    def arguments(self) -> tuple[Any, ...]:
        return (time.monotonic(),)

    def job(self) -> None:
        """Run one job, and wait until its worker waits again."""
        self._task.apply_async(self.arguments(), queue=NAME, producer=self._producer)
        self._told.recv(8)
        time.sleep(REST)

    def spent(self) -> tuple[int, int]:
        sent = sum(commands for commands, _ in self.counts.read().values())
        return sent, self.client.info("stats")["total_commands_processed"]


def measure(
    tables: Sequence[Table], case: str, names: Sequence[str], rounds: int, jobs: int
) -> None:
    pool, queues = CASES[case]
    rows = [Row(case, {name: [] for name in names}) for _ in tables]
    with ExitStack() as stack:
        workers = {name: Lone(name, pool, queues, stack) for name in names}
        for lone in workers.values():
            lone.job()
        time.sleep(CALM)
        for _ in range(rounds):
            # All at once: idle workers do not slow each other down.
            began, before = time.monotonic(), {n: lone.spent() for n, lone in workers.items()}
            time.sleep(IDLE)
            idle, took = {n: lone.spent() for n, lone in workers.items()}, time.monotonic() - began
            began = time.monotonic()
            for _ in range(jobs):
                for lone in workers.values():
                    lone.job()
            part = (time.monotonic() - began) / took
            for name, lone in workers.items():
                for row, *counts in zip(rows, before[name], idle[name], lone.spent(), strict=True):
                    first, second, third = counts
                    # INFO itself is a call, once in each of both times.
                    asked = int(row is rows[-1])
                    still = (second - first - asked) * part
                    row.values[name].append((third - second - asked - still) / jobs)
    for table, row in zip(tables, rows, strict=True):
        table.rows.append(row)
        print(f"{table.unit:10}{table.line(row)}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--jobs", type=int, default=100, help="of each worker, one by one")
    args: Any = parser.parse_args(argv)
    skipped = skipped_here()
    names = [name for name in TRANSPORTS if name not in skipped]
    tables = [
        Table("commands that a lone job sends", "sent", more=False, skipped=skipped),
        Table("calls of the server for it", "executed", more=False),
    ]
    begin(tables[0])
    for case in CASES:
        if args.only in case:
            measure(tables, case, names, args.rounds, args.jobs)
    finish(args, tables)


if __name__ == "__main__":
    sys.exit(main())
