"""Cost of a callback that is a large group, and of a long chain, for the worker and for Redis.

    python benchmarks/followers.py [--rounds 3] [--only group] [--parts 20000] [--links 600]
        [--json]

celery_superfetch is compared with stock: a solo worker of each, on a server of its own. One job has
a group as its callback, and the group's parts go to a queue without a consumer. A chain runs at the
same worker from its first link to its last. The time runs from publishing the first job until the
last part or link has arrived; CPU is what server and worker used meanwhile. The worker is ready and
has run one such job before.

The aims, as ratios to stock: 1.5 times the time and 3 times the Redis CPU for 20,000 parts; 1.1
times the worker CPU for a chain of 600 links.

Distorted by: other processes on the machine. Publishing is one long run of one core, so that two
runs may differ by half in time. Takes: four minutes (``--only group``: three minutes).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import chain, group
from compare import OURS, STOCK, Table, arguments, begin, finish_all, measure_all
from noop import build
from worker import LOOK, Drain

#: The queue of the parts, without a consumer.
NEXT = "next"
#: Seconds without any progress after which something is wrong.
PATIENCE_S = 120
MEASURED = (("time", "s"), ("the server's CPU", "s"), ("the worker's CPU", "s"))


class Followers(Drain):
    """Worker with one job that publishes so many others."""

    title = ""

    def __init__(self, contender: str, size: int) -> None:
        super().__init__(contender, "solo", 4, size)

    def run(self) -> tuple[float, ...]:
        with self.serving() as (server, url), tempfile.TemporaryDirectory() as name:
            self.client = server.client()
            self.worker = self.start(url, Path(name))
            try:
                self.publish(1, url)  # it is ready then, and the server knows the scripts
                self.wait(1)
                self.client.delete(NEXT)
                before, began = self.cpu(), time.monotonic()
                self.publish(self.jobs, url)
                self.wait(self.jobs)
                took = time.monotonic() - began
                return (took, *(after - at for at, after in zip(before, self.cpu(), strict=True)))
            finally:
                self.worker.close()

    def publish(self, size: int, url: str) -> None:
        app = build(self.contender, url)
        self.signature(app.tasks["bench.noop"], size).apply_async()
        app.close()

    def signature(self, noop: Any, size: int) -> Any:
        raise NotImplementedError

    def wait(self, size: int) -> None:
        moved, most = time.monotonic(), 0
        while most < size:
            time.sleep(LOOK)
            if (found := self.done(size)) > most:
                moved, most = time.monotonic(), found
            elif time.monotonic() > moved + PATIENCE_S or not self.worker.alive():
                raise RuntimeError(f"{most} of {size} are done\n{self.worker.tail()}")

    def done(self, size: int) -> int:
        return int(self.client.llen(NEXT))

    def cpu(self) -> tuple[float, float]:
        cpu = self.client.info("cpu")
        return cpu["used_cpu_user"] + cpu["used_cpu_sys"], self.worker_cpu()


class Group(Followers):
    title = "parts of a group as a link"

    def signature(self, noop: Any, size: int) -> Any:
        parts = group(noop.si().set(queue=NEXT) for _ in range(size))
        return noop.si().set(link=[parts])


class Chain(Followers):
    title = "links of a chain"

    def signature(self, noop: Any, size: int) -> Any:
        return chain([*(noop.si() for _ in range(size)), noop.si().set(queue=NEXT)])

    def done(self, size: int) -> int:
        """Return all of them with the last link, which has no consumer."""
        return size * int(self.client.llen(NEXT))


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--parts", type=int, default=20_000, help="of the group")
    parser.add_argument("--links", type=int, default=600, help="of the chain")
    args = parser.parse_args(argv)
    found = [Table(f"A job's followers: {name}", unit, more=False) for name, unit in MEASURED]
    begin(found[0])
    for kind, size in ((Group, args.parts), (Chain, args.links)):
        case = f"{size:,} {kind.title}"
        if args.only in case:
            runs = {name: kind(name, size).run for name in (STOCK, OURS)}
            measure_all(found, case, args.rounds, runs)
    finish_all(args, found)


if __name__ == "__main__":
    main()
