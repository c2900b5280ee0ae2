"""What the ack of a running job costs while its owner has many others in flight.

A plain kombu consumer on a server of its own holds them, and acks one more that has just come:

    python benchmarks/hoarding.py [--held 10,1000,10000,100000] [--rounds 5] [--acks 40]

`superfetch` holds ETA jobs, as a worker does that was sent many of them; beside it, `near` has as
many that are near their run: delivered, and not set aside. A worker has no more of these than its
prefetch allows. The stock transport makes no difference between the two.

The aim: with 100,000 ETA jobs an ack takes at most twice as long as with 10. The answer is
waited for here, which a consumer leaves to whatever it sends next; what the server does is the
same.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections.abc import Sequence
from typing import Any

from compare import OURS, STOCK, TRANSPORTS, Row, Table, arguments, begin, finish_all
from kombu import Connection, Consumer, Queue

from celery_superfetch.owner.membership import memberships
from support.servers.server import Server
from support.workers.bench import payload

NEAR = "near"
#: Seconds without any job after which something is wrong.
PATIENCE = 20
#: What the server did for an ack; what a script or a transaction does is part of it.
SETTLING = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_exec")


class Hoarder:
    """A consumer that acks none of what it is sent, until it is told to."""

    #: A database for each.
    dbs = itertools.count()

    def __init__(self, server: Server, contender: str) -> None:
        db = next(self.dbs)
        self.client = server.client(db)
        self.aside = contender == OURS
        self.posts = contender != STOCK
        transport = TRANSPORTS[STOCK if contender == STOCK else OURS]
        self.connection = Connection(server.url(db), transport=transport)
        self.received: list[Any] = []
        self.held: list[Any] = []
        consumer = self.consumer = Consumer(
            self.connection, [Queue("mail")], on_message=self.received.append, accept=["json"]
        )
        consumer.qos(prefetch_count=0)
        consumer.consume()
        self.sent = 0

    def receive(self, count: int) -> None:
        """Wait for some new jobs."""
        self.client.lpush("mail", *(payload(self.sent + n) for n in range(count)))
        self.sent += count
        while len(self.received) < count:
            self.connection.drain_events(timeout=PATIENCE)

    def hoard(self, count: int) -> None:
        """Have so many in flight."""
        while len(self.held) < count:
            self.receive(min(1000, count - len(self.held)))
            if self.aside:
                self._set_aside(self.received)
            self.held += self.received
            self.received.clear()

    def _set_aside(self, messages: Sequence[Any]) -> None:
        """What a worker's request does with a job whose ETA lies ahead."""
        in_flight = messages[0].channel.fetch.in_flight
        for message in messages:
            in_flight.set_aside(message._raw.claimed.job)
        in_flight.flush()

    def acks(self, count: int) -> tuple[float, float]:
        """Us that one ack takes, here and in the server."""
        here, there = [], []
        for _ in range(count):
            self.receive(1)
            [message] = self.received
            self.received.clear()
            before = self._settling()
            begun = time.perf_counter()
            message.ack()
            self.settled(message)
            here.append((time.perf_counter() - begun) * 1e6)
            there.append(self._settling() - before)
        return statistics.median(here), statistics.median(there)

    def settled(self, message: Any) -> None:
        """Wait for the answer, which only stock's ack has done."""
        if self.posts:
            message.channel.fetch.in_flight.flush()

    def end(self) -> None:
        """Leave without giving everything back: that is another benchmark's."""
        self.client.flushdb()
        self.consumer.channel.qos._delivered.clear()
        self.held.clear()
        self.connection.close()

    def _settling(self) -> float:
        stats: Any = self.client.info("commandstats")
        return float(sum(stats[name]["usec"] for name in SETTLING if name in stats))


def case_of(held: int) -> str:
    """How a case is called."""
    return f"{held:,} others in flight"


def measure(
    tables: Sequence[Table], rounds: int, acks: int, hoarders: dict[tuple[int, str], Hoarder]
) -> None:
    """Measure all cases of all contenders alternately: cases are compared with each other, too."""
    for table in tables:
        for held in dict.fromkeys(held for held, _ in hoarders):
            names = [name for other, name in hoarders if other == held]
            table.rows.append(Row(case_of(held), {name: [] for name in names}))
    turns = list(hoarders)
    for number in range(rounds):
        for held, name in turns[number % len(turns) :] + turns[: number % len(turns)]:
            for table, value in zip(tables, hoarders[held, name].acks(acks), strict=True):
                [row] = [row for row in table.rows if row.case == case_of(held)]
                row.values[name].append(value)


def growth(table: Table) -> None:
    """Print the last case in terms of the first: what hoarding costs."""
    first, last = table.rows[0], table.rows[-1]
    grown = {name: last.median(name) / first.median(name) for name in first.values}
    shown = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in grown.items())
    print(f"{table.title}: with {last.case} in terms of {first.case}: {shown}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--held", default="10,1000,10000,100000", help="jobs, in rising order")
    parser.add_argument("--acks", type=int, default=40, help="of each contender in each round")
    args = parser.parse_args(argv)
    tables = [
        Table("An ack, as its consumer sees it", "us", more=False),
        Table("An ack, in the server", "us", more=False),
    ]
    with Server(databases=64) as server:
        hoarders = {
            (held, name): Hoarder(server, name)
            for held in map(int, args.held.split(","))
            for name in (OURS, NEAR, STOCK)
            if args.only in case_of(held)
        }
        for (held, _), hoarder in hoarders.items():
            hoarder.hoard(held)
        measure(tables, args.rounds, args.acks, hoarders)
        logging.disable(logging.CRITICAL)  # what was flushed cannot be given back
        for hoarder in hoarders.values():
            hoarder.end()
        for membership in memberships():
            membership.leave_for_good()
    begin(tables[0])
    for row in tables[0].rows:
        print(tables[0].line(row))
    finish_all(args, tables)
    for table in tables:
        growth(table)


if __name__ == "__main__":
    main()
