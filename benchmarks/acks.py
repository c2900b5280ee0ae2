"""Redis time and bytes received for one ack, by the size of the job and the claims of its owner.

    python benchmarks/acks.py [--rounds 5] [--only "300 B"] [--json]

celery_superfetch alone is measured. On a server of its own, an owner claims its jobs and acks some
of them one by one. The time is that of ``HDEL`` in ``INFO commandstats``, divided by the number of
acks; the bytes are ``total_net_input_bytes``.

Distorted by: other processes on the machine (the time; not the bytes). Takes: a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compare import OURS, Table, arguments, begin, finish_all, measure_all

from support.servers.server import Server
from support.workers.bench import Bench, payload

#: Size of a job, and how many others its owner holds.
CASES = [(300, 10), (300, 10_000), (10_000, 10), (1_000_000, 10)]
ACKS = 200


def ack(size: int, others: int) -> tuple[float, float]:
    """us of the server, and bytes that it received, for one of the acks."""
    with Server() as server:
        bench = Bench(server.client())
        owner = bench.owner()
        padding = "x" * max(0, size - 400)
        count = ACKS if size < 100_000 else ACKS // 5
        bench.give(owner, "mail", [payload(f"other-{n}") for n in range(others)])
        jobs = bench.give(owner, "mail", [payload(n, padding=padding) for n in range(count)])
        bench.client.config_resetstat()
        for job in jobs:
            assert bench.run(bench.lists.settle(owner.owner, [job])) > 0  # claim and waiting note
        spent = bench.client.info("commandstats")["cmdstat_hdel"]["usec"]
        received = bench.client.info("stats")["total_net_input_bytes"]
        return spent / count, received / count


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(__doc__, rounds=5).parse_args(argv)
    tables = [
        Table("an ack: the server's time", "us", more=False),
        Table("an ack: bytes that the server receives", "bytes", more=False),
    ]
    begin(tables[0])
    for size, others in CASES:
        case = f"{size} B beside {others}"
        if args.only in case:
            contenders: dict[str, Callable[[], tuple[float, ...]]] = {
                OURS: lambda size=size, others=others: ack(size, others)
            }
            measure_all(tables, case, args.rounds, contenders)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
