"""Cost of recovering the jobs of dead owners: time, commands, and the longest block of Redis.

    python benchmarks/recovery.py [--jobs 10000] [--owners 1000] [--rounds 3] [--only 10,000]
        [--before ../other] [--json]

One pass of the reaper runs over a registry that is prepared on a server of its own, with the same
code as a worker's maintenance and `celery superfetch reap`. The first case is compared with stock,
which has no owners: one call restores all jobs, as if a visibility timeout had expired. Time is
that of the pass without pauses; the longest block is the longest script or command by the server's
slow log. The work is the same in each round, so the minimum is closest to the server's own time.

The aim: 10,000 jobs in 2 s, and no command or script that blocks Redis for more than 5 ms.

Distorted by: other processes on the machine (times and blocks; not counts). Takes: a minute for
``--only "10,000 jobs of 300 B"``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from compare import (
    BEFORE,
    OURS,
    STOCK,
    Table,
    arguments,
    begin,
    finish_all,
    measure_all,
    module_before,
)
from kombu import Connection
from sent import watch_sent

from celery_superfetch.model.config import DEFAULTS
from celery_superfetch.model.owner_record import OwnerRecord
from celery_superfetch.store.redis.clients import run_id
from support.servers.server import Server
from support.servers.work import noted
from support.workers.bench import Bench, elsewhere, payload

OWNERS_PER_HOST = 10
#: us from which on the slow log has a command; logging each would cost more than running it.
NOTED = 100
#: Seconds between the heartbeats that remote owners had promised, and between two passes.
PROMISED = 0.1
SILENCE = PROMISED + 1.1


#: Title and unit of what is measured of a pass.
MEASURED = (
    ("Recovery, one pass of the reaper", "s"),
    ("Longest block of the server", "ms"),
    ("Commands sent", "a pass"),
    ("Round trips", "a pass"),
)


@dataclass
class Taken:
    """Cost of one pass."""

    seconds: float = 0.0
    commands: int = 0
    trips: int = 0
    #: The longest command or script, in ms; a script counts with all that it does.
    block: float = 0.0

    def values(self) -> tuple[float, ...]:
        """Return a value for each table."""
        return self.seconds, self.block, self.commands, self.trips


@contextmanager
def watched(client: Any) -> Iterator[Taken]:
    """Time and count all that this process sends while the block runs."""
    taken = Taken()

    def note(commands: int, sends: int) -> None:
        taken.commands += commands
        taken.trips += sends

    with noted(client, NOTED) as work:
        watched_no_more = watch_sent(note)
        begun = time.perf_counter()
        try:
            yield taken
        finally:
            taken.seconds = time.perf_counter() - begun
            watched_no_more()
    taken.block = max((command.micros for command in work.commands), default=0) / 1000


def jobs_of(count: int, size: int, name: str = "id") -> list[bytes]:
    padding = os.urandom(size // 2).hex()
    return [payload(f"{name}-{n}", padding=padding) for n in range(count)]


def give(bench: Bench, owner: OwnerRecord, jobs: Sequence[bytes], running: int = 0) -> None:
    """Claim jobs for an owner, and start the last ones."""
    given = bench.give(owner.owner, "mail", jobs)
    for job in given[len(given) - running :]:
        bench.run_one(job)


def reaper_of(contender: str, bench: Bench) -> Any:
    """Return the reaper of this or the other checkout, on one database with the same options."""
    if contender == OURS:
        return bench.reaper()
    options = {name: v for name, v in vars(bench.config).items() if v != DEFAULTS[name]}
    made = module_before("model.config", "config").Config(**options)
    database = module_before("store.database", "")
    what = (database.Database(bench.client, made),) if database else (bench.client, made)
    return module_before("reaper.reaper", "reaper").Reaper(*what)


# -- cases: what is prepared, what is measured, how many jobs come back


def one_owner(
    contender: str, server: Server, jobs: Sequence[bytes], backlog: int = 0
) -> tuple[float, ...]:
    """Recover the jobs of a dead owner of this host."""
    client = _empty(server)
    bench = Bench(client)
    give(bench, bench.dead_owner(), jobs, running=4)
    bench.push("mail", *[b"backlog"] * backlog)
    reaper = reaper_of(contender, bench)
    with watched(client) as taken:
        report = reaper.reap()
    assert (report.recovered, report.errors) == (len(jobs), 0)
    waiting = bench.queue()
    assert waiting[: len(jobs)] == list(jobs), "the order in which they were claimed"
    return taken.values()


def stock(server: Server, jobs: Sequence[bytes]) -> tuple[float, ...]:
    """Restore the jobs of a gone stock consumer, as if its visibility timeout had expired."""
    client = _empty(server)
    client.lpush("mail", *jobs)
    options = {"visibility_timeout": 0}
    with Connection(server.url(), transport_options=options) as connection:
        channel = connection.channel()
        channel.queue_declare("mail")
        channel.exchange_declare("", "direct")
        channel.queue_bind("mail", "", "mail")
        for _ in jobs:
            assert channel.basic_get("mail") is not None
        with watched(client) as taken:
            channel.qos.restore_visible(num=len(jobs), interval=1)
        assert client.llen("mail") == len(jobs)
        channel.qos._delivered.clear()
    return taken.values()


def many_owners(
    contender: str, server: Server, owners: int, dead: int, remote: bool, jobs: int
) -> tuple[float, ...]:
    """Recover the jobs of some dead owners among many on other hosts."""
    client = _empty(server)
    bench = Bench(client)
    here = client.client_id()
    record = {"run_id": run_id(client), "connections": (here,)}
    for n in range(owners - dead):
        bench.owner(elsewhere(f"host-{n // OWNERS_PER_HOST}", n + 1), **record)
    hasty = Bench(client, heartbeat_interval=PROMISED, owner_ttl=100 * SILENCE)
    gone = {"run_id": run_id(client), "connections": (1 << 40,)}
    for n in range(dead):
        made = hasty.owner(elsewhere(f"gone-{n}", n + 1), **gone) if remote else bench.dead_owner()
        give(bench, made, jobs_of(jobs, 300, f"owner-{n}"))
    reaper = reaper_of(contender, bench)
    if remote:
        for _ in range(2):
            assert reaper.reap().recovered == 0, "silence is watched, by three passes"
            time.sleep(SILENCE)
    with watched(client) as taken:
        report = reaper.reap()
    assert (len(report.dead), report.owners, report.errors) == (dead, owners, 0)
    assert report.recovered == dead * jobs
    return taken.values()


def _empty(server: Server) -> Any:
    client = server.client()
    client.flushall()
    return client


Contenders = dict[str, Callable[[], tuple[float, ...]]]


def cases(args: Any, server: Server) -> Iterator[tuple[str, Contenders]]:
    def ours(prepare: Callable[..., tuple[float, ...]], *with_: Any) -> Contenders:
        both = (OURS, BEFORE) if args.before else (OURS,)
        return {who: partial(prepare, who, server, *with_) for who in both}

    number = f"{args.jobs:,} jobs"
    small, middling = jobs_of(args.jobs, 300), jobs_of(args.jobs, 10_000)
    yield f"{number} of 300 B", {**ours(one_owner, small), STOCK: lambda: stock(server, small)}
    yield f"{number} of 10 kB", ours(one_owner, middling)
    yield f"{args.large} jobs of 1 MB", ours(one_owner, jobs_of(args.large, 1_000_000))
    yield f"{number}, 100,000 waiting", ours(one_owner, small, 100_000)
    for dead, remote, where in ((0, False, ""), (10, False, " here"), (10, True, " elsewhere")):
        name = f"{args.owners:,} owners, {dead} died{where}"
        yield name, ours(many_owners, args.owners, dead, remote, args.each)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--jobs", type=int, default=10_000, help="in flight of the dead owner")
    parser.add_argument("--large", type=int, default=100, help="of 1 MB")
    parser.add_argument("--owners", type=int, default=1000, help="registered ones")
    parser.add_argument("--each", type=int, default=10, help="jobs of each of those that died")
    args = parser.parse_args(argv)
    # A line for each owner that is reaped is for operators.
    for name in ("celery_superfetch", "celery_superfetch_before"):
        logging.getLogger(name).setLevel(logging.ERROR)
    tables = [Table(title, unit, more=False) for title, unit in MEASURED]
    begin(tables[0])
    with Server() as server:
        for case, contenders in cases(args, server):
            if args.only in case:
                measure_all(tables, case, args.rounds, contenders)
    finish_all(args, tables)


if __name__ == "__main__":
    main()
