"""Throughput and cost per job of a worker on one slot of a Redis Cluster, and on a single server.

    python benchmarks/cluster.py [--rounds 5] [--jobs 4000] [--only prefork] [--json]

celery_superfetch is compared with itself: the same worker drains the same jobs from a single
server, and from that node of a cluster of three primaries which serves the slot of its prefix.
Figures come about as in ``worker.py``.

The aim: 0.95 times the jobs per second of the single server, at the same Redis CPU per job.

Distorted by: other processes on the machine, and the three nodes, which share its cores with the
worker. Takes: four minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from compare import OURS, Table, arguments, begin, finish_all, measure_all
from worker import POOLS, Drain, tables

from support.servers.cluster import cluster
from support.servers.server import Server

SINGLE, SLOT = "single server", "one slot"


class InSlot(Drain):
    prefix = "{bench}:"

    @contextmanager
    def serving(self) -> Iterator[tuple[Server, str]]:
        with cluster() as nodes:
            yield nodes.home(self.prefix), ";".join(node.url() for node in nodes.nodes)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--jobs", type=int, default=4000, help="of each run")
    args = parser.parse_args(argv)
    found: list[Table] = tables({})
    for table in found:
        table.to = SINGLE
    begin(found[0])
    os.environ.pop("CONTENDER", None)
    for pool, size in POOLS.items():
        case = f"{pool} -c {size}"
        if args.only in case:
            both = {SINGLE: Drain, SLOT: InSlot}
            drains = {at: kind(OURS, pool, 4, args.jobs).run for at, kind in both.items()}
            measure_all(found, case, args.rounds, drains)
    finish_all(args, found)


if __name__ == "__main__":
    main()
