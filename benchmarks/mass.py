"""Cost for other workers when hundreds die at once, start at once, or share one host.

    python benchmarks/mass.py [--before PATH] [--rounds 1] [--only tombstones] [--json]

celery_superfetch alone is measured, or compared with another checkout of itself (``--before``). The
maintenance code of one worker runs in this process, over a registry of owners that is prepared on a
server of its own:

- Mass death: seconds from the last heartbeats until all jobs are back on their queue.
- Mass start: kB that the server sends to one worker as it starts.
- One host: cores that 200 workers of one host use to watch each other's processes.
- Tombstones: ms of a reap pass over 100 dead workers with 80 empty lists each.

The aims, at the default limits: 1,000 silent workers found and reaped within 75 s (``owner_ttl`` is
60 s of that); 200 workers on a host use a tenth of a core to watch each other. The limits here are
a fifth of the defaults, so that the wait of a mass death, but not its work, takes a fifth of its
time.

Distorted by: other processes on the machine (all but the kB). Takes: ten minutes for two rounds of
1,000 silent workers.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from celery import Celery
from compare import BEFORE, OURS, Table, arguments, begin, finish, import_before
from redis.connection import parse_url

from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.redis.clients import run_id
from support.servers.server import Server
from support.workers.bench import Bench, elsewhere, image_of, payload

#: A fifth of the defaults.
LIMITS = {"heartbeat_interval": 1.0, "owner_ttl": 12.0, "reap_interval": 2.0}
OWNERS_PER_HOST = 10
#: Seconds between two rounds of a worker's maintenance.
ROUND = 1.0
#: Seconds after which it is given up.
PATIENCE = 600.0
LISTS = [f"list-{number}" for number in range(80)]

Measured = Callable[[], float]


class Package:
    """The package of this checkout, or of the other one."""

    def __init__(self, name: str, server: Server) -> None:
        self.name, self.server = name, server
        self.app = Celery("shop", broker=server.url(), set_as_current=False)
        self.app.conf.broker_transport_options = {"app_name": "shop", **LIMITS}
        self.app.finalize()

    def part(self, module: str, name: str) -> Any:
        """Return a member of one of its modules."""
        return getattr(import_module(f"{self.name}.{module}"), name)

    @contextmanager
    def member(self, **limits: float) -> Iterator[Any]:
        """Register this process as an owner, with a heartbeat."""
        config = self.part("model.config", "Config")(app_name="shop", **{**LIMITS, **limits})
        membership = self.part("owner.owner", "Owner")(parse_url(self.server.url()), config)
        membership.join(1, {"mail": 0})
        try:
            yield membership
        finally:
            membership.leave(1)

    def rounds(self, membership: Any) -> Any:
        """Return the maintenance of an owner."""
        return self.part("worker.maintenance", "OwnerMaintenance")(self.app, membership)


def mass_death(package: Package, dead: int, connected: bool) -> float:
    """Return seconds from the last heartbeats until a remote worker has recovered all jobs."""
    client = package.server.client()
    client.flushall()
    bench = Bench(client, **LIMITS)
    with package.member() as membership:
        rounds = package.rounds(membership)
        record = {} if connected else {"run_id": run_id(client), "connections": (1 << 40,)}
        for number in range(dead):
            gone = bench.owner(elsewhere(f"gone-{number // OWNERS_PER_HOST}", number + 1), **record)
            bench.give(gone.owner, "mail", [payload(number)])
        began = time.monotonic()
        while client.llen("mail") < dead and time.monotonic() - began < PATIENCE:
            rounds.tick(time.monotonic())
            time.sleep(ROUND)
    assert client.llen("mail") == dead
    return time.monotonic() - began


def start(package: Package, owners: int, per_host: int) -> float:
    """Return kB that the server sends to one worker as it starts, with so many other owners."""
    client = package.server.client()
    client.flushall()
    bench = Bench(client, **LIMITS)
    here = bench.owner().process.host
    for number in range(owners):
        host = here if number < per_host else f"host-{number // per_host}"
        bench.owner(elsewhere(host, number + 1))
    with package.member() as membership:
        rounds = package.rounds(membership)
        client.set(bench.keys.lock("all"), 1)  # another worker's pass over all owners is on
        client.set(bench.keys.lock("full"), 1)
        before = sent(client)
        package.part("worker.bootsteps", "_first_pass")(package.app, membership)
        rounds.tick(time.monotonic())
        return (sent(client) - before) / 1000


def sent(client: Any) -> int:
    """Return bytes that the server has sent."""
    return int(client.info("stats")["total_net_output_bytes"])


def one_host(package: Package, workers: int) -> float:
    """Return the cores that so many workers of one host use to watch each other."""
    client = package.server.client()
    client.flushall()
    bench = Bench(client, **LIMITS)
    with ExitStack() as stack:
        for _ in range(workers - 1):
            sleeper = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
                stdin=subprocess.PIPE,
            )
            stack.callback(sleeper.communicate)
            bench.owner(image_of(sleeper.pid))
        membership = stack.enter_context(package.member(heartbeat_interval=60, owner_ttl=120))
        rounds = package.rounds(membership)
        rounds._next_pass = time.monotonic() + 3600
        rounds.tick(time.monotonic())  # it identifies their processes
        times, began = 50, time.process_time()
        for _ in range(times):
            rounds.tick(time.monotonic())
        return workers * (time.process_time() - began) / times / ROUND


def tombstones(package: Package, count: int) -> float:
    """Return ms of a pass over so many tombstones with 80 lists each, all of them empty."""
    client = package.server.client()
    client.flushall()
    bench = Bench(client, **LIMITS)
    gone: list[OwnerRecord] = [
        bench.owner(elsewhere(f"gone-{n}"), lists=LISTS) for n in range(count)
    ]
    for record in gone:
        score = bench.registry.owners()[record.owner]
        assert bench.registry.mark(record, score, 3600, "gone")
    config = package.part("model.config", "Config")()
    database = package.part("store.database", "Database")(client, config)
    reaper = package.part("reaper.reaper", "Reaper")(database)
    reaper.reap()
    began = time.perf_counter()
    report = reaper.reap()
    assert not report.errors
    return (time.perf_counter() - began) * 1000


def cases() -> Iterator[tuple[str, str, str, Callable[[Package], float]]]:
    """Yield title, unit, case, and the function that measures it."""
    title = "Mass death: found and reaped, at a fifth of the default limits"
    for dead in (100, 600, 1000):
        yield title, "s", f"{dead:,} silent", lambda p, n=dead: mass_death(p, n, True)
        yield title, "s", f"{dead:,} disconnected", lambda p, n=dead: mass_death(p, n, False)
    title = "Mass start: what the server sends to one worker"
    yield title, "kB", "1,000 owners, 10 a host", lambda p: start(p, 1000, 10)
    yield title, "kB", "200 owners on one host", lambda p: start(p, 200, 200)
    title = "Workers of one host looking at each other"
    yield title, "cores", "200 workers on one host", lambda p: one_host(p, 200)
    yield "Tombstones", "ms a pass", "100 tombstones of 80 lists", lambda p: tombstones(p, 100)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(__doc__ or "", rounds=1).parse_args(argv)
    logging.disable(logging.ERROR)  # a line for each owner that is reaped is for operators
    tables: dict[str, Table] = {}
    with Server() as server:
        packages = {OURS: Package("celery_superfetch", server)}
        if args.before:
            import_before()
            packages[BEFORE] = Package("celery_superfetch_before", server)
        for title, unit, case, measured in cases():
            if args.only in case:
                if title not in tables:
                    tables[title] = Table(title, unit, more=False)
                    begin(tables[title])
                contenders: dict[str, Measured] = {
                    name: lambda p=package, m=measured: m(p) for name, package in packages.items()
                }
                tables[title].measure(case, args.rounds, contenders)
    finish(args, [*tables.values()])


if __name__ == "__main__":
    main()
