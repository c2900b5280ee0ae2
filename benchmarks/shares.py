"""Shares of a worker's time: sending, waiting for Redis, the transport's code, Celery.

    python benchmarks/shares.py [--rounds 3] [--only solo] [--jobs 8000] [--seconds 4] [--json]

celery_superfetch is compared with stock and celery-redis-plus. A worker of each drains jobs that do
nothing, while py-spy samples its main thread 100 times a second (``pip install py-spy``; it may
need root). A sample counts for the innermost frame that belongs to a package:

- sending: redis-py is in the call that sends, which on a loopback connection does half of the
  receiver's work as well;
- waiting: redis-py reads an answer;
- the transport: celery_superfetch, ``kombu.transport``, celery-redis-plus, the rest of redis-py;
- all else: Celery, the rest of kombu, the task.

Distorted by: the sampling, which slows the worker down: use the shares and no times. Takes: about
three minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compare import TRANSPORTS, Table, arguments, begin, finish_all, measure_all, without_plus
from worker import LOOK, Drain, Look, left

#: Samples per second.
RATE = 100
#: A frame as py-spy writes it: function, file and line.
FRAME = re.compile(r"(?P<function>\S+) \((?P<file>[^()]+\.py)(?::\d+)?\)$")

SENDING, WAITING, TRANSPORT, REST = PARTS = "sending", "waiting", "the transport", "all else"
OF_TRANSPORTS = ("celery_superfetch/", "kombu/transport/", "celery_redis_plus/", "redis/")
OF_CELERY = ("celery/", "kombu/", "billiard/", "vine/", "amqp/", "benchmarks/")


def part_of(stack: Sequence[str]) -> str:
    """Return the part that a sample counts for; frames from the outermost to the innermost."""
    for depth, frame in enumerate(reversed(stack)):
        match = FRAME.match(frame)
        function, path = match.groups() if match else ("", "")
        if path.startswith("redis/") and not depth:
            if function.endswith(".send_packed_command"):
                return SENDING
            if function.endswith("read_from_socket"):
                return WAITING
        if path.startswith(OF_TRANSPORTS):
            return TRANSPORT
        if path.startswith(OF_CELERY):
            return REST
    return REST


class Profile(Drain):
    """Worker that is sampled while it drains."""

    def __init__(self, contender: str, pool: str, jobs: int, seconds: float) -> None:
        super().__init__(contender, pool, 4, jobs)
        self.seconds = seconds

    def run(self) -> tuple[float, ...]:
        """Return per cent of the main thread's time, of each part."""
        with tempfile.TemporaryDirectory() as name:
            self.stacks = Path(name) / "stacks"
            super().run()
            counts = self.counted()
        return tuple(100 * counts[part] / counts.total() for part in PARTS)

    def watch(self) -> tuple[Look, Look]:
        while left(self.client, self.contender) == self.jobs:
            time.sleep(LOOK)
        first = self.look(left(self.client, self.contender))
        argv = [
            *("py-spy", "record", "--idle", "--nonblocking", "--threads", "--format", "raw"),
            *("--rate", str(RATE), "--duration", f"{self.seconds:g}"),
            *("--output", str(self.stacks), "--pid", str(self.worker.pid)),
        ]
        subprocess.run(argv, check=True, capture_output=True)
        last = self.look(left(self.client, self.contender))
        if not last.left:
            raise RuntimeError(f"{self.jobs} jobs are too few for {self.seconds:g} s: see --jobs")
        return first, last

    def counted(self) -> Counter[str]:
        """Return samples of the main thread for each part."""
        counts: Counter[str] = Counter()
        for line in self.stacks.read_text().splitlines():
            frames, _, count = line.rpartition(" ")
            thread, *stack = frames.split(";")
            if "MainThread" in thread:
                counts[part_of(stack)] += int(count)
        return counts


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--jobs", type=int, default=8000, help="of each run")
    parser.add_argument("--seconds", type=float, default=4, help="to look")
    args = parser.parse_args(argv)
    if shutil.which("py-spy") is None:
        sys.exit("py-spy is not installed (pip install py-spy): nothing to look with.")
    os.environ.pop("CONTENDER", None)
    skipped = without_plus()
    unit = "% of the main thread's time"
    tables = [Table(part, unit, more=False, skipped=skipped) for part in PARTS]
    begin(tables[0])
    names = [name for name in TRANSPORTS if name not in skipped]
    for pool in ("solo", "prefork"):
        if args.only in pool:
            made = {name: Profile(name, pool, args.jobs, args.seconds).run for name in names}
            measure_all(tables, pool, args.rounds, made)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
