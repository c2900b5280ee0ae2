"""CPU time to recover the reserved jobs of one dead worker, and that of four times as many.

    python benchmarks/reserved.py [--jobs 25000] [--rounds 3] [--json]

celery_superfetch is compared with itself. On a server of its own, an owner of this host has died
with jobs that it had claimed and not started; one pass of the reaper recovers all. Measured are the
CPU seconds of this process and the server until the first batch is back on its queue, and of the
whole pass. A ratio of four is linear. (A search of all claims for each job gave sixteen: 11 s until
the first of 20,000 jobs was back, 187 s for the first of 100,000.)

Distorted by: hardly anything, since CPU time is measured. Takes: a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from compare import Table, arguments, begin, finish_all, measure_all

from celery_superfetch.reaper.drain import finish
from support.servers.server import Server
from support.workers.bench import Bench, payload

TIMES = 4


def processor_seconds(client: Any) -> float:
    """Return the CPU seconds of this process and of the server."""
    cpu = client.info("cpu")
    return float(time.process_time() + cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def recover(server: Server, jobs: int) -> tuple[float, float]:
    """Return CPU seconds until the first jobs are back, and until all are."""
    client = server.client()
    client.flushall()
    bench = Bench(client)
    owner = bench.dead_owner()
    raws = [payload(f"id-{number}") for number in range(jobs)]
    fields = {}
    for number, raw in enumerate(raws, 1):
        fields |= {f"{number}:mail": raw, f"w{number}:mail": b""}
        if len(fields) >= 10_000 or number == jobs:
            client.hset(bench.keys.private(owner.owner), mapping=fields)
            fields.clear()
    steps = bench.reaper().reap_in_steps()
    begun = processor_seconds(client)
    next(steps)
    first = processor_seconds(client) - begun
    assert client.llen("mail") > 0, "the first are back"
    report = finish(steps)
    whole = processor_seconds(client) - begun
    assert (report.recovered, report.errors) == (jobs, 0)
    assert client.lindex("mail", -1) == raws[0], "the oldest claim is the next one"
    return first, whole


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--jobs", type=int, default=25_000, help="the smaller number")
    args = parser.parse_args(argv)
    logging.getLogger("celery_superfetch").setLevel(logging.ERROR)
    counts = {f"{count:,}": count for count in (args.jobs, TIMES * args.jobs)}
    titles = "Reserved jobs: until the first is back", "Reserved jobs: the whole pass"
    tables = [Table(title, "s", more=False, to=next(iter(counts))) for title in titles]
    begin(tables[0])
    with Server() as server:
        contenders = {name: partial(recover, server, count) for name, count in counts.items()}
        measure_all(tables, "jobs of one dead owner", args.rounds, contenders)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
