"""Idle workers: commands they send, connections they have, how soon and how many a job wakes.

    python benchmarks/idle.py [--only idle|connections|wake|herd] [--rounds 1] [--seconds 40]
        [--samples 150] [--json]

celery_superfetch is compared with stock and celery-redis-plus. Each worker has a server of its own
and no job:

- idle: commands per second that a prefork worker sends (a script is one; without events, mingle and
  gossip), and its connections in a blocking command. The window has to be longer than the longest
  wait, which is renewed after 20 s.
- connections: all that a prefork worker with Celery's default options has open, and their purpose.
- wake: ms from publishing one job to the first line of its task, for the first and the last queue,
  and for each priority of one queue. The contenders take turns job by job; a round's values are the
  median and the 99th percentile of its jobs. celery-redis-plus counts priorities the other way; no
  other job is queued, so they make no difference.
- herd: 50 processes with a kombu consumer each wait on one queue. Counted are the commands sent
  within ``MOMENT`` after a job, and the consumers that sent more than one (one may be a heartbeat
  or a renewed wait). The counts of as long a moment without a job are subtracted.

The aims: one command per second with the default priorities, two with 20 queues, at most 16
blocking connections; a 99th percentile of the wake-up within 1 ms of stock's; a job wakes one
consumer.

Distorted by: other processes on the machine ("wake", above all the 99th percentile; "herd" if it
misses its moment). Counts of "idle" and "connections" are not. Takes: seven minutes for three
rounds of "wake", a minute for "connections".
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from compare import STOCK, TRANSPORTS, Row, Table, arguments, begin, finish, skipped_here
from noop import NAME, Counts, build

from support.process import Process
from support.servers.connections import open_connections
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker, process_env

CONSUMERS = 50
#: Seconds within which a job that was sent has started, or something is wrong.
PATIENCE = 10
#: Seconds within which a woken worker acks, claims in vain and waits again.
REST = 0.03
#: Seconds in which the senders of commands are counted.
MOMENT = 0.05
#: Seconds until a worker that has started sends only what an idle one sends.
CALM = 3.0


class Idle:
    """A worker with nothing to do, on a server of its own."""

    def __init__(
        self, contender: str, queues: Sequence[str], stack: ExitStack, quiet: bool = True
    ) -> None:
        self.contender, self.queues = contender, queues
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.server = stack.enter_context(Server())
        self.client = self.server.client()
        self.counts = Counts(directory / "counts")
        self._told = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._told.bind(str(directory / "told"))
        self._told.settimeout(PATIENCE)
        self._app = build(contender, self.server.url())
        stack.callback(self._app.close)
        env = {
            "CONTENDER": contender,
            "BROKER_URL": self.server.url(),
            "COUNTS": str(directory / "counts"),
            "TOLD": str(directory / "told"),
        }
        self.worker = Worker(
            env,
            app="benchmarks.noop",
            queues=queues,
            args=("--without-heartbeat",) if quiet else (),
            neighbours=not quiet,
            loglevel="INFO",
            directory=directory,
        )
        stack.callback(self.worker.close)

    def wait_ready(self) -> None:
        self.worker.wait_ready()

    @property
    def sent(self) -> int:
        return sum(commands for commands, _ in self.counts.read().values())

    def blocked(self) -> int:
        return sum("b" in row["flags"] for row in self.client.client_list())

    def connections(self) -> Counter[str]:
        return open_connections(self.client)

    def wake(self, queue: str, priority: int | None) -> float:
        """Publish a job and return ms until its first line."""
        task = self._app.tasks["bench.told"]
        # Without this the first round trips of the producer's connection would be measured as well.
        with self._app.producer_or_acquire() as producer:
            producer.connection.ensure_connection()
            task.apply_async((time.monotonic(),), queue=queue, priority=priority, producer=producer)
        return float(struct.unpack("d", self._told.recv(8))[0]) * 1000


def queues_of(number: int) -> list[str]:
    return [f"{NAME}-{n}" for n in range(number)]


@contextmanager
def idlers(
    names: Sequence[str], queues: Sequence[str], quiet: bool = True
) -> Iterator[dict[str, Idle]]:
    """Start one worker of each contender."""
    with ExitStack() as stack:
        found = {name: Idle(name, queues, stack, quiet) for name in names}
        for idle in found.values():
            idle.wait_ready()
        yield found


# -- idle


def measure_idle(
    tables: Sequence[Table], names: Sequence[str], numbers: Sequence[int], args: Any
) -> None:
    """Measure all workers at once: idle ones do not slow each other down."""
    with ExitStack() as stack:
        found = {n: stack.enter_context(idlers(names, queues_of(n))) for n in numbers}
        time.sleep(CALM)
        rows = {n: [Row(_queues(n), {name: [] for name in names}) for _ in tables] for n in numbers}
        for _ in range(args.rounds):
            before = {n: {name: idle.sent for name, idle in found[n].items()} for n in numbers}
            time.sleep(args.seconds)
            for n in numbers:
                rates, blocked = rows[n]
                for name, idle in found[n].items():
                    rates.values[name].append((idle.sent - before[n][name]) / args.seconds)
                    blocked.values[name].append(idle.blocked())
    for table, some in zip(tables, zip(*rows.values(), strict=True), strict=True):
        for row in some:
            _add(table, row)


def measure_connections(table: Table, names: Sequence[str], number: int) -> None:
    with idlers(names, queues_of(number), quiet=False) as found:
        time.sleep(4 * CALM)
        duties = {name: idle.connections() for name, idle in found.items()}
    _add(table, Row(_queues(number), {name: [float(n.total())] for name, n in duties.items()}))
    for name, counts in duties.items():
        named = ", ".join(f"{count} {duty}" for duty, count in sorted(counts.items()))
        print(f"{'':16}{name}: {named}", flush=True)


def _queues(number: int) -> str:
    return f"{number} queue{'s' if number > 1 else ''}"


def _add(table: Table, row: Row) -> None:
    table.rows.append(row)
    print(f"{table.unit:16}{table.line(row)}", flush=True)


# -- wake-up


def measure_wake(
    tables: Sequence[Table], names: Sequence[str], number: int, ends: Sequence[Any], args: Any
) -> None:
    """Measure the wake-up; each round yields a median and a 99th percentile."""
    queues = queues_of(number)
    with idlers(names, queues) as found:
        time.sleep(CALM)
        for label, queue, priority in ends:
            p50, p99 = (Row(f"{_queues(number)}, {label}", {n: [] for n in names}) for _ in "12")
            for _ in range(args.rounds):
                deadline = time.monotonic() + args.wake_seconds
                took: dict[str, list[float]] = {name: [] for name in names}
                while time.monotonic() < deadline and len(took[STOCK]) < args.samples:
                    for name, idle in found.items():
                        time.sleep(REST)
                        took[name].append(idle.wake(queues[queue], priority))
                for name, values in took.items():
                    p50.values[name].append(statistics.median(values))
                    p99.values[name].append(sorted(values)[int(len(values) * 0.99)])
            for table, row in zip(tables, (p50, p99), strict=True):
                _add(table, row)


ENDS = {
    1: [(f"priority {priority}", 0, priority) for priority in (0, 3, 6, 9)],
    4: [("the first", 0, None), ("the last", -1, None)],
    20: [("the first", 0, None), ("the last", -1, None)],
}


# -- herd


def consume(contender: str, url: str) -> None:
    """Consume until the process ends; run by each process of the herd."""
    from kombu import Connection, Consumer, Queue

    with Connection(url, transport=TRANSPORTS[contender]) as connection:
        consumer = Consumer(connection.channel(), [Queue(NAME)], on_message=lambda m: m.ack())
        consumer.qos(prefetch_count=1)
        consumer.consume()
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=60)


def herd(contender: str, args: Any) -> tuple[float, float]:
    """Return commands and woken consumers per job."""
    from kombu import Connection, Queue

    with Server() as server, tempfile.TemporaryDirectory() as name:
        directory, client = Path(name), server.client()
        counts = Counts(directory / "counts")
        env = process_env({"COUNTS": str(directory / "counts")})
        argv = [sys.executable, __file__, "--herd-of", contender, server.url()]
        process = Process(argv, log=directory / "log", env=env, cwd=directory, title="herd")

        def moment(job: bool) -> tuple[float, float]:
            before = counts.read()
            if job:
                producer.publish({}, routing_key=NAME, exchange="")
            time.sleep(MOMENT)
            after = counts.read()
            new = [after[pid][0] - before.get(pid, (0, 0))[0] for pid in after]
            return sum(new), sum(n > 1 for n in new)

        try:
            eventually(lambda: len(_waiting(client)) >= CONSUMERS, 60, message="all wait")
            with Connection(server.url(), transport=TRANSPORTS[contender]) as connection:
                producer = connection.Producer()
                Queue(NAME)(connection.default_channel).declare()
                time.sleep(CALM)
                pairs = [(moment(True), moment(False)) for _ in range(args.herd_jobs)]
        finally:
            process.close()
    return (
        statistics.mean(with_job[0] - without[0] for with_job, without in pairs),
        statistics.mean(with_job[1] - without[1] for with_job, without in pairs),
    )


def _waiting(client: Any) -> list[Any]:
    return [row for row in client.client_list() if "b" in row["flags"]]


def run_herd(contender: str, url: str) -> None:
    """Fork the herd; all of it ends with this process."""
    for _ in range(CONSUMERS):
        if not os.fork():
            consume(contender, url)
    signal.pause()


def measure_herd(tables: Sequence[Table], names: Sequence[str], args: Any) -> None:
    rows = [Row(f"{CONSUMERS} consumers", {name: [] for name in names}) for _ in tables]
    for _ in range(args.rounds):
        for name in names:
            for row, value in zip(rows, herd(name, args), strict=True):
                row.values[name].append(value)
    for table, row in zip(tables, rows, strict=True):
        _add(table, row)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--seconds", type=float, default=40, help="to count an idle worker's")
    parser.add_argument("--samples", type=int, default=150, help="of each wake-up")
    parser.add_argument("--wake-seconds", type=float, default=15, help="of each wake-up, at most")
    parser.add_argument("--herd-jobs", type=int, default=100)
    parser.add_argument("--herd-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.herd_of:
        run_herd(*args.herd_of)
    skipped = skipped_here()
    names = [name for name in TRANSPORTS if name not in skipped]
    idle = [
        Table("commands of an idle worker", "commands/s", more=False, skipped=skipped),
        Table("blocking connections of an idle worker", "blocking", more=False),
    ]
    open_ = Table("connections of an idle worker", "open", more=False)
    wake = [
        Table("from publishing to start, half of the jobs", "ms, p50", more=False),
        Table("from publishing to start, 99 of 100", "ms, p99", more=False),
    ]
    crowd = [
        Table("commands for a job while many wait", "commands/job", more=False),
        Table("consumers that a job wakes", "woken/job", more=False),
    ]
    begin(idle[0])
    numbers = [n for n in ENDS if args.only in f"idle, {_queues(n)}"]
    if numbers:
        measure_idle(idle, names, numbers, args)
    for number in ENDS:
        if args.only in f"connections, {_queues(number)}":
            measure_connections(open_, names, number)
    for number, ends in ENDS.items():
        chosen = [end for end in ends if args.only in f"wake, {_queues(number)}, {end[0]}"]
        if chosen:
            measure_wake(wake, names, number, chosen, args)
    if args.only in "herd":
        measure_herd(crowd, names, args)
    finish(args, [table for table in (*idle, open_, *wake, *crowd) if table.rows])


if __name__ == "__main__":
    main()
