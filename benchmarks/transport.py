"""Throughput and cost per job of a transport: a plain kombu consumer that acks at once.

    python benchmarks/transport.py [--rounds 3] [--only "prefetch 1,"] [--jobs 1000] [--json]

celery_superfetch is compared with stock and celery-redis-plus. Each case runs in both loops of
kombu: `drain_events`, as programs consume, and the hub, as Celery's workers do. The jobs are
published before, and a tenth of them is consumed before the time runs, so that connections and
scripts exist. Besides jobs per second, each job's cost is measured: CPU of the consumer's process
and of the server (`INFO cpu`), commands sent (a script is one), and reads by the server (all that a
client sends at once is one, so these are round trips; a large payload takes several).

The aims: three times stock at prefetch 1, eight times at prefetch 16.

Distorted by: other processes on the machine (rates, and to a lesser extent CPU; not commands), and
by the consumer and the server sharing cores. Takes: four minutes; seven rounds of "1 MB": a minute
and a half.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from compare import (
    TRANSPORTS,
    Table,
    arguments,
    begin,
    finish_all,
    measure_all,
    skipped_here,
)
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from sent import watch_sent

from support.servers.server import Server

#: Of the jobs of a run, the part that is consumed before the time runs.
WARM = 10
#: Seconds without any job after which something is wrong.
PATIENCE = 20


class Case(NamedTuple):
    """Parameters of a run."""

    loop: str
    prefetch: int
    size: int
    queues: int

    def __str__(self) -> str:
        queues = f", {self.queues} queues" if self.queues > 1 else ""
        return f"{self.loop}, prefetch {self.prefetch}, {_bytes(self.size)}{queues}"

    def jobs(self, most: int) -> int:
        """Return the number of jobs: fewer if they are large, since memory is not measured."""
        return max(40, min(most, 20_000_000 // self.size))


class Load(NamedTuple):
    """Counters of a server and of this process at some moment."""

    at: float
    own_cpu: float
    cpu: float
    reads: int
    commands: int

    def per_job(self, since: Load, jobs: int) -> tuple[float, ...]:
        """Return jobs per second, us of CPU of this process and the server, commands and reads."""
        return (
            jobs / (self.at - since.at),
            (self.own_cpu - since.own_cpu) / jobs * 1e6,
            (self.cpu - since.cpu) / jobs * 1e6,
            (self.commands - since.commands) / jobs,
            (self.reads - since.reads) / jobs,
        )


def _bytes(size: int) -> str:
    for unit, factor in (("MB", 1_000_000), ("kB", 1000)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def load_of(client: Any) -> Load:
    info = client.info("all")
    cpu = info["used_cpu_user"] + info["used_cpu_sys"]
    reads = info["total_reads_processed"]
    return Load(time.perf_counter(), time.process_time(), cpu, reads, _sent)


#: Commands that this process has sent.
_sent = 0


def note_sent(commands: int, _: int) -> None:
    """Count for ``load_of``."""
    global _sent
    _sent += commands


def fill(url: str, transport: str, queues: Sequence[Queue], jobs: int, size: int) -> None:
    """Publish jobs, to each queue in turn, as the contender does it."""
    body = os.urandom(size // 2).hex()
    with Connection(url, transport=transport) as connection, connection.channel() as channel:
        producer = Producer(channel, serializer="json")
        for queue in queues:
            queue(channel).declare()
        for queue in itertools.islice(itertools.cycle(queues), jobs):
            producer.publish(body, exchange=queue.exchange, routing_key=queue.routing_key)


@contextmanager
def turns(connection: Connection, loop: str) -> Iterator[Callable[[], object]]:
    """Return a function that runs the loop once."""
    if loop == "drain":
        yield lambda: connection.drain_events(timeout=PATIENCE)
        return
    hub = Hub()
    connection.transport.register_with_event_loop(connection.connection, hub)
    turning = hub.create_loop()
    try:
        yield lambda: next(turning)
    finally:
        turning.close()
        hub.close()


def run(server: Server, contender: str, case: Case, most: int) -> tuple[float, ...]:
    """Consume once; return a value for each table."""
    client = server.client()
    client.flushall()
    exchange = Exchange("bench", type="direct")
    queues = [Queue(f"bench-{n}", exchange, f"bench-{n}") for n in range(case.queues)]
    jobs, done = case.jobs(most), 0
    fill(server.url(), TRANSPORTS[contender], queues, jobs, case.size)

    def ack(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    def until(goal: int, turn: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while done < goal:
            turn()
            if time.monotonic() > deadline and done < goal:
                raise RuntimeError(f"{contender}, {case}: {done} of {jobs} jobs came")

    with Connection(server.url(), transport=TRANSPORTS[contender]) as connection:
        consumer = Consumer(connection.channel(), queues, on_message=ack)
        consumer.qos(prefetch_count=case.prefetch)
        consumer.consume()
        with turns(connection, case.loop) as turn:
            until(jobs // WARM, turn)
            first, before = done, load_of(client)
            until(jobs, turn)
            end, own_cpu = time.perf_counter(), time.process_time()
            after = load_of(client)._replace(at=end, own_cpu=own_cpu)
    return after.per_job(before, jobs - first)


def cases() -> Iterator[Case]:
    """Yield for each loop: prefetch by size on one queue, prefetch by queues at 300 B."""
    for loop in ("drain", "hub"):
        for size, prefetch in itertools.product((300, 10_000, 1_000_000), (1, 16, 64)):
            if loop == "drain" or size == 300:
                yield Case(loop, prefetch, size, 1)
        for queues, prefetch in itertools.product((4, 20), (1, 16)):
            yield Case(loop, prefetch, 300, queues)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--jobs", type=int, default=1000, help="of a run; fewer large ones")
    args = parser.parse_args(argv)
    skipped = skipped_here()
    title = "consume and ack"
    tables = [
        Table(title, "jobs/s", skipped=skipped),
        Table(f"{title}: the consumer's CPU", "us per job", more=False, skipped=skipped),
        Table(f"{title}: the server's CPU", "us per job", more=False, skipped=skipped),
        Table(f"{title}: commands", "sent per job", more=False, skipped=skipped),
        Table(f"{title}: reads by the server", "per job", more=False, skipped=skipped),
    ]
    watch_sent(note_sent)
    begin(tables[0])
    names = [name for name in TRANSPORTS if name not in skipped]
    with Server() as server:
        for case in cases():
            if args.only in str(case):
                contenders = {
                    name: lambda name=name, case=case: run(server, name, case, args.jobs)
                    for name in names
                }
                measure_all(tables, str(case), args.rounds, contenders)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
