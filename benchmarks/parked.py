"""Memory, stop and punctuality of workers with many scheduled jobs.

    python benchmarks/parked.py [--jobs 100000] [--crowd 20000] [--due 10000] [--rounds 3]
        [--only "due in a day"] [--json]

celery_superfetch is compared with stock: prefork workers of each, on a server of its own.

- Many jobs that are due in a day are published to a worker, which then gets TERM. Measured are its
  memory beyond that of the same worker before, the time until it has ended, and the jobs that its
  end moves.
- Ten ordinary jobs wait behind many that are due in a day. A worker whose main process takes more
  than ``LIMIT`` MB is killed and started again. Counted are the ordinary jobs that have run within
  a minute, and the deaths.
- Many jobs are due in the same second, for two workers. Measured are the delays of the first and
  the last of them, and the number that started too early.

The aims: memory and stop as without these jobs, none moves, none is early; the ten ordinary jobs
run, and no worker dies.

Distorted by: other processes on the machine (times; not memory and counts). Takes: four minutes for
one round of "due in a day".
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
from compare import OURS, STOCK, Table, arguments, finish, measure_all

from support.apps.build import build_app
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker, app_env

PATIENCE = 900.0  # seconds after which something is wrong
DAY = 86400
LIMIT = 130  # MB
ORDINARY = [f"ordinary-{number}" for number in range(10)]
SOON = 30.0  # seconds in which all jobs that are due at once are parked, or taken


class Place:
    """Server, and the environment of a contender's workers."""

    def __init__(self, server: Server, contender: str, directory: str) -> None:
        self.client, self.directory = server.client(), Path(directory)
        self.ledger = Ledger(server.url(LEDGER_DB))
        env = app_env(server.url(), ledger_url=server.url(LEDGER_DB))
        self.env = {**env, "SUPERFETCH": str(int(contender == OURS))}
        self.app = build_app({**env, "SUPERFETCH": "0"})

    def send(self, count: int, due: datetime) -> None:
        """Publish many jobs at once, faster than Celery would."""
        one = {"eta": due, "task_id": "id-of-it", "queue": "sample"}
        self.app.tasks["shop.note"].apply_async(("job",), **one)
        sample: Any = self.client.lpop("sample")
        tag = json.loads(sample)["properties"]["delivery_tag"].encode()  # stock's name of a job
        raw = sample.replace(b'"sample"', b'"celery"').replace(tag, b"id-of-it")
        for first in range(0, count, 1000):
            names = (str(uuid.uuid4()).encode() for _ in range(min(1000, count - first)))
            self.client.lpush("celery", *(raw.replace(b"id-of-it", name) for name in names))

    def taken(self, count: int) -> bool:
        """Return whether all jobs are where scheduled jobs wait."""
        stock: Any = self.client.hlen("unacked")
        parked: Any = self.client.zcard("superfetch:parked:celery")
        return bool(stock + parked == count)

    def worker(self, concurrency: int = 2) -> Worker:
        worker = Worker(self.env, concurrency=concurrency, directory=self.directory)
        worker.wait_ready()
        return worker


def backlog(contender: str, jobs: int) -> tuple[float, ...]:
    """Return MB of memory, seconds until the worker has ended, and jobs that its end moved."""
    with Server(databases=LEDGER_DB + 1) as server, tempfile.TemporaryDirectory() as directory:
        place = Place(server, contender, directory)
        worker = place.worker()
        main = psutil.Process(worker.pid)
        before = main.memory_info().rss
        place.send(jobs, datetime.now(timezone.utc) + timedelta(seconds=DAY))
        eventually(lambda: place.taken(jobs), PATIENCE, message="all jobs wait")
        memory = (main.memory_info().rss - before) / 2**20
        begun = time.monotonic()
        worker.term()
        worker.wait_exit(PATIENCE)
        took = time.monotonic() - begun
        moved: Any = place.client.llen("celery")
        return memory, took, float(moved)


def crowded(contender: str, jobs: int) -> tuple[float, ...]:
    """Return how many of ten ordinary jobs ran within a minute, and the number of deaths."""
    with Server(databases=LEDGER_DB + 1) as server, tempfile.TemporaryDirectory() as directory:
        place = Place(server, contender, directory)
        place.send(jobs, datetime.now(timezone.utc) + timedelta(seconds=DAY))
        for name in ORDINARY:
            place.app.tasks["shop.note"].apply_async((name,))
        worker, deaths, until = place.worker(), 0, time.monotonic() + 60
        while time.monotonic() < until and not {*ORDINARY} <= place.ledger.finishes().keys():
            if worker.alive() and psutil.Process(worker.pid).memory_info().rss > LIMIT * 2**20:
                worker.kill9_all()
                worker.wait_gone()
                worker, deaths = place.worker(), deaths + 1
            time.sleep(0.05)
        ran = len({*ORDINARY} & place.ledger.finishes().keys())
        worker.kill9_all()
        worker.wait_gone()
        return float(ran), float(deaths)


def at_once(contender: str, jobs: int) -> tuple[float, ...]:
    """Return seconds from their time to the first and the last start, and how many were early."""
    with Server(databases=LEDGER_DB + 1) as server, tempfile.TemporaryDirectory() as directory:
        place = Place(server, contender, directory)
        workers = [place.worker(), place.worker()]
        due = datetime.now(timezone.utc) + timedelta(seconds=SOON)
        place.send(jobs, due)
        eventually(lambda: len(place.ledger.lines("started")) == jobs, PATIENCE, every=0.5)
        starts = [line["at"] - due.timestamp() for line in place.ledger.lines("started")]
        for worker in workers:
            worker.term()
            worker.wait_exit(PATIENCE)
        return min(starts), max(starts), float(sum(at < 0 for at in starts))


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--jobs", type=int, default=100_000, help="due in a day")
    parser.add_argument("--crowd", type=int, default=20_000, help="in front of ordinary ones")
    parser.add_argument("--due", type=int, default=10_000, help="due in the same second")
    args = parser.parse_args(argv)
    waiting = [
        Table("Memory of a worker, beyond that of one without jobs", "MB", more=False),
        Table("From TERM to its end", "s", more=False),
        Table("Jobs that its end moves", "jobs", more=False),
    ]
    crowd = [
        Table(f"Of ten jobs behind others, that ran within a minute at {LIMIT} MB", "jobs"),
        Table("Deaths that it cost", "deaths", more=False),
    ]
    due = [
        Table("From their time to the first start", "s", more=False),
        Table("From their time to the last start", "s", more=False),
        Table("Jobs that started too early", "jobs", more=False),
    ]
    for tables, case, count, measured in (
        (waiting, f"{args.jobs:,} jobs, due in a day", args.jobs, backlog),
        (crowd, f"{args.crowd:,} jobs, due in a day", args.crowd, crowded),
        (due, f"{args.due:,} jobs, due at once", args.due, at_once),
    ):
        if args.only not in case:
            continue
        print(tables[0].heading)
        contenders = {
            name: lambda name=name, count=count, measured=measured: measured(name, count)
            for name in (OURS, STOCK)
        }
        measure_all(tables, case, args.rounds, contenders)
        for table in tables[1:]:
            table.show()
    finish(args, [*waiting, *crowd, *due])


if __name__ == "__main__":
    main()
