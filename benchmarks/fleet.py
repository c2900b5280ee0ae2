"""Cost and delay of a job in a fleet of consumers that wait on twenty queues.

    python benchmarks/fleet.py [--only idle|busy|few] [--owners 50] [--busy 15] [--queues 20]
        [--jobs 200] [--rounds 1] [--before ../other] [--json]

celery_superfetch is compared with stock; "few" compares it with itself, with a check every 0.25 s
in place of key tracking. celery-redis-plus is not measured: its consumers ask one queue after the
other. Each contender has processes with a kombu consumer each on a server of its own, all waiting
on all queues. Jobs come one by one to a queue chosen at random:

- idle: no consumer has a job. Counted are the commands sent within ``MOMENT`` after a job, and the
  consumers that sent more than one; the counts of as long a moment without a job are subtracted.
  Timed is the delay from publishing to the first line of the job.
- busy: fewer consumers, most of which run a job. The same delay, of jobs that came while a consumer
  was idle.
- few: one or two consumers. The commands per second of one without a job, and the same delay.

Distorted by: other processes on the machine (delays, above all the 99th percentile; a heartbeat
within a moment is counted as well). Takes: about eight minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from compare import (
    BEFORE,
    OURS,
    STOCK,
    TRANSPORTS,
    Row,
    Table,
    arguments,
    begin,
    finish,
    import_before,
)
from noop import Counts

from support.process import Process
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import process_env

#: Seconds in which the senders of commands are counted.
MOMENT = 0.05
#: Seconds until a fleet that has started sends only what an idle one sends: two heartbeats.
CALM = 12.0
#: Seconds of one job, and share of the processes that are busy on average, in the busy fleet.
WORK, LOAD = 0.3, 0.75
PATIENCE = 10.0
#: Consumers of this package without key tracking: they check the lists that they do not wait on.
LOOKING = "a look every 0.25 s"
#: Seconds in which the commands of an idle process are counted: a read is renewed every 20 s.
AT_REST = 40.0


def consume(contender: str, url: str, number: int, told: str, work: float) -> None:
    """Consume until the process ends; run by each process of the fleet."""
    from kombu import Connection, Consumer, Queue

    if contender == LOOKING:
        look_often(0.25)
    teller = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def run(message: Any) -> None:
        sent = message.decode()["sent"]
        teller.sendto(struct.pack("dd", sent, time.monotonic()), told)
        if work:
            time.sleep(work * random.uniform(0.5, 1.5))
        message.ack()

    transport = TRANSPORTS[OURS if contender == LOOKING else contender]
    with Connection(url, transport=transport) as connection:
        queues = [Queue(name) for name in queues_of(number)]
        consumer = Consumer(connection.channel(), queues, on_message=run)
        consumer.qos(prefetch_count=1 if work else 4)
        consumer.consume()
        while True:
            with suppress(TimeoutError):
                connection.drain_events(timeout=60)


def look_often(interval: float) -> None:
    """Make this process check its lists at an interval, where it would use key tracking."""
    from celery_superfetch.store import key_tracking
    from celery_superfetch.transport import poller
    from celery_superfetch.transport.fetch import blocking_reads

    poller.POLL_INTERVAL = interval
    key_tracking.EXISTS_INTERVAL_S = blocking_reads.CHECK_INTERVAL = 0.9 * interval
    key_tracking.KeyTracker.track = key_tracking.KeyTracker.check


def run_fleet(contender: str, url: str, told: str, owners: str, number: str, work: str) -> None:
    """Fork the fleet; all of it ends with this process."""
    if contender == BEFORE:
        import_before()
    for _ in range(int(owners)):
        if not os.fork():
            random.seed(os.getpid())
            consume(contender, url, int(number), told, float(work))
    signal.pause()


def queues_of(number: int) -> list[str]:
    return [f"fleet-{n}" for n in range(number)]


class Fleet:
    """Consumers of one contender that have nothing to do yet."""

    def __init__(self, contender: str, owners: int, number: int, work: float = 0.0) -> None:
        self.contender, self.owners, self.work = contender, owners, work
        self.queues = queues_of(number)

    @contextmanager
    def running(self) -> Iterator[None]:
        from kombu import Connection, Queue

        with Server() as server, tempfile.TemporaryDirectory() as name:
            directory, self.client = Path(name), server.client()
            self.counts = Counts(directory / "counts")
            self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.told.bind(str(directory / "told"))
            env = {"COUNTS": str(directory / "counts")}
            how = (str(directory / "told"), str(self.owners), str(len(self.queues)), str(self.work))
            argv = [sys.executable, __file__, "--fleet-of", self.contender, server.url(), *how]
            process = Process(
                argv, log=directory / "log", env=process_env(env), cwd=directory, title="fleet"
            )
            try:
                eventually(lambda: self._waiting() >= self.owners, 120, message="all wait")
                time.sleep(CALM)
                with Connection(server.url(), transport=TRANSPORTS[STOCK]) as connection:
                    self.producer = connection.Producer()
                    for queue in self.queues:
                        Queue(queue)(connection.default_channel).declare()
                    yield
            finally:
                process.close()
                self.told.close()

    def _waiting(self) -> int:
        """Return the number of connections in a blocking command."""
        rows = self.client.client_list()
        return sum("b" in row["flags"] for row in rows)

    def sent(self) -> int:
        return sum(commands for commands, _ in self.counts.read().values())

    def publish(self) -> None:
        queue = random.choice(self.queues)
        self.producer.publish({"sent": time.monotonic()}, routing_key=queue, exchange="")

    def heard(self, wait: float) -> list[float]:
        """Wait for a job to begin. Return ms from publishing to the first line of all that have."""
        took: list[float] = []
        self.told.settimeout(wait)
        with suppress(TimeoutError, BlockingIOError):
            while True:
                sent, began = struct.unpack("dd", self.told.recv(16))
                took.append((began - sent) * 1000)
                self.told.settimeout(0.0)
        return took

    def moment(self, job: bool) -> tuple[float, float]:
        before = self.counts.read()
        if job:
            self.publish()
        time.sleep(MOMENT)
        after = self.counts.read()
        new = [after[pid][0] - before.get(pid, (0, 0))[0] for pid in after]
        return sum(new), sum(n > 1 for n in new)


def idle(contender: str, args: Any) -> tuple[float, ...]:
    """Return consumers woken and commands per job, connections per consumer, p50 and p99 (ms)."""
    fleet = Fleet(contender, args.owners, args.queues)
    with fleet.running():
        clients = (len(fleet.client.client_list()) - 2) / args.owners
        pairs, took = [], []
        for _ in range(args.jobs):
            pairs.append((fleet.moment(True), fleet.moment(False)))
            took += fleet.heard(PATIENCE)
    commands = statistics.mean(job[0] - none[0] for job, none in pairs)
    woken = statistics.mean(job[1] - none[1] for job, none in pairs)
    return woken, commands, clients, *quantiles(took)


def busy(contender: str, args: Any) -> tuple[float, ...]:
    """Return p50 and p99 (ms) of jobs that came while at least one process was idle."""
    fleet = Fleet(contender, args.busy, args.queues, WORK)
    took: list[float] = []
    with fleet.running():
        running: list[float] = []  # when those that run end, at the latest
        for _ in range(args.jobs):
            time.sleep(random.expovariate(LOAD * args.busy / WORK))
            now = time.monotonic()
            running = [end for end in running if end > now]
            if len(running) >= args.busy - 1:
                continue  # a job would wait for a process, whatever the transport
            running.append(now + 1.5 * WORK)
            fleet.publish()
            took += fleet.heard(0.001)
        while part := fleet.heard(2.0):
            took += part
    return quantiles(took)


def few(contender: str, args: Any) -> tuple[float, ...]:
    """Return commands per second of a process without a job, and p50 and p99 (ms)."""
    fleet, took = Fleet(contender, args.owners, args.queues), []
    with fleet.running():
        before = fleet.sent()
        time.sleep(AT_REST)
        commands = (fleet.sent() - before) / AT_REST / args.owners
        for _ in range(args.jobs):
            fleet.publish()
            took += fleet.heard(PATIENCE)
            time.sleep(random.uniform(0.05, 0.3))  # no step with the looks
    return commands, *quantiles(took)


def quantiles(took: Sequence[float]) -> tuple[float, float]:
    return statistics.median(took), sorted(took)[int(len(took) * 0.99)]


def measure(tables: Sequence[Table], title: str, names: Sequence[str], run: Any, args: Any) -> None:
    rows = [Row(title, {name: [] for name in names}) for _ in tables]
    for _ in range(args.rounds):
        for name in names:
            for row, value in zip(rows, run(name, args), strict=True):
                row.values[name].append(value)
    for table, row in zip(tables, rows, strict=True):
        table.rows.append(row)
        print(f"{table.title:50}{table.line(row)}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--owners", type=int, default=50, help="consumers of the idle fleet")
    parser.add_argument("--busy", type=int, default=15, help="consumers of the busy fleet")
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--fleet-of", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.fleet_of:
        run_fleet(*args.fleet_of)
    names = [OURS, STOCK, *([BEFORE] if args.before else [])]
    crowd = [
        Table("consumers that a job wakes", "woken/job", more=False),
        Table("commands for a job", "commands/job", more=False),
        Table("connections of a consumer", "open", more=False),
        Table("from publishing to start, half of the jobs", "ms, p50", more=False),
        Table("from publishing to start, 99 of 100", "ms, p99", more=False),
    ]
    tail = [
        Table("most are busy: half of the jobs", "ms, p50", more=False),
        Table("most are busy: 99 of 100", "ms, p99", more=False),
    ]
    lonely = [
        Table("a process without a job", "commands/s", more=False, to=OURS),
        Table("from publishing to start, half of the jobs", "ms, p50", more=False, to=OURS),
        Table("from publishing to start, 99 of 100", "ms, p99", more=False, to=OURS),
    ]
    begin(crowd[0])
    if args.only in "idle":
        title = f"{args.owners} consumers, {args.queues} queues"
        measure(crowd, title, names, idle, args)
    if args.only in "busy":
        measure(tail, f"{args.busy} consumers, {args.queues} queues", names, busy, args)
    for owners in (1, 2) if args.only in "few" else ():
        args.owners = owners
        title = f"{owners} consumers, {args.queues} queues"
        measure(lonely, title, [OURS, LOOKING], few, args)
    finish(args, [table for table in (*crowd, *tail, *lonely) if table.rows])


if __name__ == "__main__":
    main()
