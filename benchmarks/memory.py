"""Memory per job in flight, in the consumer's process and in Redis, and per waiting job in Redis.

    python benchmarks/memory.py [--rounds 2] [--jobs 5000] [--only "300 B"] [--json]

celery_superfetch is compared with stock and celery-redis-plus. A plain kombu consumer, in a process
of its own for each run, receives all jobs of a queue and acks none. Its value is the growth of its
resident memory from the first delivery to the last, per job. The server's value is the growth of
``used_memory`` since it was empty.

Distorted by: the allocators (both grow in steps, which is why there are thousands of jobs), and not
by other processes. Takes: a minute.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import TRANSPORTS, Table, arguments, begin, finish_all, measure_all, skipped_here
from kombu import Connection, Consumer, Exchange, Queue
from transport import fill

from support.servers.server import Server

QUEUE = Queue("bench", Exchange("bench", type="direct"), "bench")
#: Seconds after which something is wrong.
PATIENCE = 60


def resident() -> int:
    """Return bytes of this process that are in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def hold(url: str, contender: str, jobs: int) -> None:
    """Receive all jobs, print the growth per job, and wait for the end of stdin."""
    held: list[Any] = []
    with Connection(url, transport=TRANSPORTS[contender]) as connection:
        consumer = Consumer(connection.channel(), [QUEUE], on_message=held.append)
        consumer.qos(prefetch_count=jobs + 1)
        consumer.consume()
        deadline = time.monotonic() + PATIENCE
        while not held:
            connection.drain_events(timeout=PATIENCE)
        before = resident()
        while len(held) < jobs and time.monotonic() < deadline:
            connection.drain_events(timeout=PATIENCE)
        print((resident() - before) / (len(held) - 1) if len(held) == jobs else "", flush=True)
        sys.stdin.read()
        os._exit(0)  # without requeueing the jobs, after the last figure


def used(client: Any) -> int:
    return int(client.info("memory")["used_memory"])


def run(contender: str, jobs: int, size: int) -> tuple[float, float, float]:
    """Return bytes per job: in the consumer, in the server in flight, in the server waiting."""
    with Server() as server:
        client = server.client()
        empty = used(client)
        fill(server.url(), TRANSPORTS[contender], [QUEUE], jobs, size)
        waiting = used(client)
        arguments = [__file__, "--hold", contender, "--url", server.url(), "--jobs", str(jobs)]
        consumer = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert consumer.stdout is not None
            grown = consumer.stdout.readline().strip()
            if not grown:
                raise RuntimeError(f"{contender} was not given all of {jobs} jobs")
            in_flight = used(client)
        finally:
            consumer.communicate("")
    return float(grown), (in_flight - empty) / jobs, (waiting - empty) / jobs


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=2)
    parser.add_argument("--jobs", type=int, default=5000, help="of a run")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.hold:
        hold(args.url, args.hold, args.jobs)
    skipped = skipped_here()
    tables = [
        Table("memory of the consumer", "B per job in flight", more=False, skipped=skipped),
        Table("memory of the server", "B per job in flight", more=False, skipped=skipped),
        Table("memory of the server", "B per waiting job", more=False, skipped=skipped),
    ]
    begin(tables[0])
    for case, size in (("300 B", 300), ("10 kB", 10_000)):
        if args.only in case:
            jobs = min(args.jobs, 10_000_000 // size)
            contenders = {
                name: lambda name=name, size=size, jobs=jobs: run(name, jobs, size)
                for name in TRANSPORTS
                if name not in skipped
            }
            measure_all(tables, case, args.rounds, contenders)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
