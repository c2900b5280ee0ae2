"""Redis CPU and bytes sent by Redis for one job at an idle worker, by the size of the job.

    python benchmarks/lone_large.py [--only solo] [--sizes 1000 100000 1000000] [--jobs 50]
        [--rounds 5] [--before ../other] [--json]

celery_superfetch is compared with stock and celery-redis-plus. Jobs that do nothing with their
argument are published one by one to an idle worker of each contender in turn, each when the worker
waits again, as in ``lone_job.py``. Redis CPU is from ``INFO cpu`` and includes the producer's
LPUSH. Heartbeats come once a minute here.

The aim: a job of 1 MB costs Redis no more CPU than with stock.

Distorted by: other processes on the machine (CPU; not the bytes). Takes: about five minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from compare import TRANSPORTS, Row, Table, arguments, begin, finish, skipped_here
from lone_job import CALM, Lone

#: Cases: the pools that differ in what a claim and a start send.
CASES = ("solo", "prefork")


class Sized(Lone):
    """Idle worker, and the server's counts for its jobs."""

    filler = ""

    def arguments(self) -> tuple[Any, ...]:
        return (*super().arguments(), self.filler)

    def spent_by_server(self) -> tuple[float, int]:
        """Return seconds of CPU, and bytes that the server has sent."""
        cpu, stats = self.client.info("cpu"), self.client.info("stats")
        return cpu["used_cpu_user"] + cpu["used_cpu_sys"], stats["total_net_output_bytes"]


def measure(tables: Sequence[Table], pool: str, names: Sequence[str], args: Any) -> None:
    with ExitStack() as stack:
        workers = {name: Sized(name, pool, 1, stack) for name in names}
        for size in args.sizes:
            rows = [Row(f"{pool}, {size:,} B", {name: [] for name in names}) for _ in tables]
            for worker in workers.values():
                worker.filler = "x" * size
                for _ in range(5):  # the allocator adapts to the size
                    worker.job()
            time.sleep(CALM)
            for _ in range(args.rounds):
                before = {name: worker.spent_by_server() for name, worker in workers.items()}
                for _ in range(args.jobs):
                    for worker in workers.values():
                        worker.job()
                for name, worker in workers.items():
                    counts = zip(before[name], worker.spent_by_server(), strict=True)
                    seconds, sent_bytes = (last - first for first, last in counts)
                    rows[0].values[name].append(seconds / args.jobs * 1e6)
                    rows[1].values[name].append(sent_bytes / args.jobs)
            for table, row in zip(tables, rows, strict=True):
                table.rows.append(row)
                print(f"{table.unit:10}{table.line(row)}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--jobs", type=int, default=50, help="of each worker, one by one")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    args: Any = parser.parse_args(argv)
    skipped = skipped_here()
    names = [name for name in TRANSPORTS if name not in skipped]
    tables = [
        Table("a lone job: the server's CPU", "us per job", more=False, skipped=skipped),
        Table("a lone job: bytes that the server sends", "bytes", more=False),
    ]
    begin(tables[0])
    for pool in CASES:
        if args.only in pool:
            measure(tables, pool, names, args)
    finish(args, tables)


if __name__ == "__main__":
    sys.exit(main())
