"""Jobs per second that a client publishes, and its CPU per job.

    python benchmarks/publish.py [--rounds 15] [--jobs 1000] [--json]

celery_superfetch is compared with stock and celery-redis-plus. A Celery app publishes jobs of a
task without arguments, one by one and as a group, to a server without consumers; there is no result
backend. Jobs that are published one by one are measured in runs of a tenth of the jobs, ten times
as many: nearly all of the time is Celery's own, and the shorter the time between two compared runs,
the smaller the difference that can be detected.

The aim: at least 0.98 times stock, since publishing needs nothing of this package.

Distorted by: other processes on the machine; ratios within 0.02 of 1 are noise. Takes: three
minutes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, group
from compare import (
    TRANSPORTS,
    Table,
    arguments,
    begin,
    fetch_as,
    finish_all,
    measure_all,
    without_plus,
)

from support.servers.server import Server

#: Jobs that are sent before the time runs, so that connections are there.
WARM = 20


def make_app(url: str, contender: str) -> Celery:
    """Build an app as its users do, without further settings."""
    app = Celery(f"bench_{contender}", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_send_task_events=False)
    fetch_as(app, contender)
    app.task(name="bench.nothing")(_nothing)
    return app


def _nothing() -> None:
    """Do nothing; no worker runs it."""


def one_by_one(task: Any, jobs: int) -> None:
    for _ in range(jobs):
        task.apply_async()


def as_group(task: Any, jobs: int) -> None:
    group(task.s() for _ in range(jobs)).apply_async()


def run(
    client: Any, app: Celery, send: Callable[[Any, int], None], jobs: int
) -> tuple[float, float]:
    """Return jobs per second, and us of this process's CPU for each."""
    task = app.tasks["bench.nothing"]
    client.flushall()
    one_by_one(task, WARM)
    gc.collect()  # otherwise this run pays for the garbage of the one before
    begun, cpu = time.perf_counter(), time.process_time()
    send(task, jobs)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return jobs / took, cpu / jobs * 1e6


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--jobs", type=int, default=1000, help="of a group")
    args = parser.parse_args(argv)
    skipped = without_plus()
    tables = [
        Table("publish", "jobs/s", skipped=skipped),
        Table("publish: the client's CPU", "us per job", more=False, skipped=skipped),
    ]
    begin(tables[0])
    with Server() as server:
        client = server.client()
        apps = {name: make_app(server.url(), name) for name in TRANSPORTS if name not in skipped}
        few = max(1, args.jobs // 10)
        for case, send, jobs, rounds in (
            ("apply_async, one by one", one_by_one, few, args.rounds * 10),
            (f"a group of {args.jobs}", as_group, args.jobs, args.rounds),
        ):
            if args.only in case:
                contenders = {
                    name: lambda app=app, send=send, jobs=jobs: run(client, app, send, jobs)
                    for name, app in apps.items()
                }
                measure_all(tables, case, rounds, contenders)
        for app in apps.values():
            app.close()
    finish_all(args, tables)


if __name__ == "__main__":
    main()
