"""A thousand owners on the same queues: the cost of a heartbeat, and the death of hundreds at once.

    python benchmarks/places.py [--owners 1000] [--dead 300] [--consumers 20] [--queues 20] [--json]

celery_superfetch alone is measured. Most owners are simulated: they are registered, send heartbeats
and wait for no job (``tests/support/workers/simulated.py``), all on this host. Some are real
consumers, each in a process of its own. At rest, measured are the server's time for one heartbeat's
script (``INFO commandstats``) and its CPU. Then some simulated owners die at once, and a reaper
makes a pass. From the kill on, measured are:

- jobs found: seconds until the real consumers have found a job on each queue; a simulated owner
  takes none, so that a job on a list of its share waits for the check of a real one.
- reaped: seconds until all dead owners are reaped.
- lists read: seconds until each queue is in the share of a simulated survivor, by its last answer.
- new places: seconds until each simulated survivor has a heartbeat's answer without the dead.

Distorted by: other processes on the machine (all values). Takes: a minute.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compare import OURS, STOCK, TRANSPORTS, Row, Table, arguments, begin, finish
from kombu import Connection

from celery_superfetch.model.owner_rank import OwnerRank
from support.process import Process
from support.servers.server import Server
from support.waiting import eventually
from support.workers.bench import Bench
from support.workers.consumers import SEEN
from support.workers.simulated import PLACES
from support.workers.worker import process_env

RANKS = "superfetch:ranks"
#: Seconds between two heartbeats of a simulated owner, as by default.
INTERVAL = 5.0
#: Seconds in which the heartbeats are counted.
AT_REST = 15.0
PATIENCE = 120.0


class Fleet:
    """Simulated owners and real consumers on a server of their own."""

    def __init__(self, args: Any, stack: ExitStack) -> None:
        self.queues = [f"fleet-{n:02}" for n in range(args.queues)]
        self._stack, self._directory = (
            stack,
            Path(stack.enter_context(tempfile.TemporaryDirectory())),
        )
        self.server = stack.enter_context(Server())
        self.client = self.server.client()
        rest = args.owners - args.dead - args.consumers
        self._start("consumers", args.consumers)
        self._start("simulated", rest, INTERVAL)
        self.victims = self._start("simulated", args.dead, INTERVAL)
        self.wait_for(args.owners)

    def _start(self, module: str, *how: Any) -> Process:
        argv = [sys.executable, "-m", f"support.workers.{module}", self.server.url()]
        argv += [*map(str, how), *self.queues]
        log = self._directory / f"log-{time.monotonic()}"
        process = Process(argv, log=log, env=process_env({}), cwd=self._directory, title=module)
        self._stack.callback(process.close)
        return process

    def wait_for(self, owners: int) -> None:
        """Wait until each simulated owner knows of all ``owners``."""
        eventually(lambda: self._known() == {owners}, PATIENCE, message=f"{owners} places")

    def _places(self) -> list[OwnerRank]:
        """Return the last ranks of the simulated owners that are registered."""
        places = self.client.hgetall(PLACES)
        rows = {row.decode().rpartition(":a:")[2] for row in self.client.zrange(RANKS, 0, -1)}
        return [
            OwnerRank(*json.loads(raw)) for name, raw in places.items() if name.decode() in rows
        ]

    def _known(self) -> set[int]:
        return {place.owners for place in self._places()}

    def read_lists(self) -> int:
        """Return the number of queues that are in the share of a simulated owner."""
        return len(
            {
                name
                for place in self._places()
                for name in place.share(self.queues, place.read_count(len(self.queues)))
            }
        )

    def spent(self) -> tuple[float, int, float]:
        """Return CPU of the server (s), scripts that have run, and their duration (us)."""
        cpu, stats = self.client.info("cpu"), self.client.info("commandstats")
        scripts = stats.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return cpu["used_cpu_user"] + cpu["used_cpu_sys"], scripts["calls"], scripts["usec"]


def run(args: Any) -> tuple[float, ...]:
    """Measure once; return a value for each table."""
    with ExitStack() as stack:
        fleet = Fleet(args, stack)
        cpu, calls, us = fleet.spent()
        time.sleep(AT_REST)
        cpu_after, calls_after, us_after = fleet.spent()
        fleet.victims.signal(signal.SIGKILL)
        began = time.monotonic()
        with Connection(fleet.server.url(), transport=TRANSPORTS[STOCK]) as connection:
            for name in fleet.queues:
                connection.Producer().publish("after", routing_key=name, exchange="")
        eventually(lambda: fleet.client.llen(SEEN) == len(fleet.queues), PATIENCE, 0.01)
        found = time.monotonic() - began
        assert len(Bench(fleet.client).reaper().reap().dead) == args.dead
        reaped = time.monotonic() - began
        eventually(lambda: fleet.read_lists() == len(fleet.queues), PATIENCE, 0.05)
        covered = time.monotonic() - began
        fleet.wait_for(args.owners - args.dead)
        placed = time.monotonic() - began
        per_script = (us_after - us) / (calls_after - calls)
        load = (cpu_after - cpu) / AT_REST * 100
        return per_script, load, found, reaped, covered, placed


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--owners", type=int, default=1000)
    parser.add_argument("--dead", type=int, default=300, help="of the simulated ones")
    parser.add_argument("--consumers", type=int, default=20, help="real ones, among the owners")
    parser.add_argument("--queues", type=int, default=20)
    args = parser.parse_args(argv)
    case = f"{args.owners} owners, {args.queues} queues, {args.dead} die"
    tables = [
        Table("the server's time for a heartbeat", "us", more=False),
        Table("the server's CPU at rest", "% of a core", more=False),
        Table("from the kill: jobs on all queues are found", "s", more=False),
        Table("from the kill: all dead are reaped", "s", more=False),
        Table("from the kill: all lists are read", "s", more=False),
        Table("from the kill: all survivors have new places", "s", more=False),
    ]
    begin(tables[0])
    logging.disable(logging.WARNING)  # a line for each that died
    rows = [Row(case, {OURS: []}) for _ in tables]
    for _ in range(args.rounds):
        for row, value in zip(rows, run(args), strict=True):
            row.values[OURS].append(value)
    for table, row in zip(tables, rows, strict=True):
        table.rows.append(row)
        print(f"{table.title:48}{table.line(row)}", flush=True)
    finish(args, tables)


if __name__ == "__main__":
    main()
