"""Delay of other jobs while the callers of many dead-lettered jobs cannot be notified.

    python benchmarks/notices.py [--jobs 1000] [--rounds 3] [--json]

celery_superfetch alone is measured. A dead worker held many jobs, each of which is moved to the
dead set as it is recovered. The result backend accepts connections and does not answer. From then
on an ordinary job is published every second, for two workers of two slots each. Measured are the
delay of the first of these jobs, the longest delay within half a minute, and the time from the
moment the backend answers again until all callers are notified.

The aim: other jobs continue at once, and the result backend costs one slot.

Distorted by: other processes on the machine (delays). Takes: four minutes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compare import OURS, Table, arguments, finish, measure_all

from celery_superfetch.app.backend_lock import BACKEND_PAUSE_S, LOCK_EXPIRES_S
from support.apps.build import build_app
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.proxy import FaultProxy
from support.servers.server import Server
from support.waiting import eventually
from support.workers.bench import Bench, payload
from support.workers.worker import Worker, app_env

#: Real values of what the tests' app shortens.
REAL = {"PAUSE": str(BACKEND_PAUSE_S), "HELD_OFF": str(LOCK_EXPIRES_S)}

PATIENCE = 900.0  # seconds after which something is wrong
SECONDS = 30  # for which the result backend hangs
UNANNOUNCED = "superfetch:dead:unannounced"


def hung(jobs: int) -> tuple[float, ...]:
    """Return seconds of the first delay, of the longest, and from the backend's answer until all
    callers are notified."""
    with (
        Server(databases=LEDGER_DB + 1) as server,
        FaultProxy(server.port) as proxy,
        tempfile.TemporaryDirectory() as directory,
    ):
        client, ledger = server.client(), Ledger(server.url(LEDGER_DB))
        env = app_env(
            server.url(),
            ledger_url=ledger.url,
            result_url=proxy.url(),
            options={"reap_interval": 1},
        )
        app = build_app({**env, "SUPERFETCH": "0", "RESULT_URL": ""})
        workers = [
            Worker(
                {**env, **REAL, "KILL": "1"}, app="told", concurrency=2, directory=Path(directory)
            )
            for _ in range(2)
        ]
        for worker in workers:
            worker.wait_ready()
        proxy.stall()
        bench = Bench(client)
        pills = [payload(number, "celery", "told.pill") for number in range(jobs)]
        bench.dead_owner(pills, "celery", lists=["celery"])
        eventually(lambda: client.zcard("superfetch:dead") == jobs, PATIENCE)
        sent: dict[str, float] = {}
        for number in range(SECONDS):
            name = f"ordinary-{number}"
            sent[name] = time.time()
            how: Any = {"kwargs": {"who": name}, "ignore_result": True}
            app.send_task("told.note", **how)
            time.sleep(1)
        eventually(lambda: sent.keys() <= ledger.starts().keys(), PATIENCE)
        waits = [ledger.starts()[name][0] - at for name, at in sent.items()]
        proxy.heal()
        begun = time.monotonic()
        eventually(lambda: not client.exists(UNANNOUNCED), PATIENCE, every=0.5)
        took = time.monotonic() - begun
        for worker in workers:
            worker.term()
            worker.wait_exit(PATIENCE)
        return waits[0], max(waits), took


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--jobs", type=int, default=1000, help="killed at once")
    args = parser.parse_args(argv)
    tables = [
        Table("The first other job waits", "s", more=False),
        Table("Of one a second, the longest wait", "s", more=False),
        Table("From the result backend's answer until all are told", "s", more=False),
    ]
    print(tables[0].heading)
    measure_all(
        tables, f"{args.jobs:,} killed at once", args.rounds, {OURS: lambda: hung(args.jobs)}
    )
    for table in tables[1:]:
        table.show()
    finish(args, tables)


if __name__ == "__main__":
    main()
