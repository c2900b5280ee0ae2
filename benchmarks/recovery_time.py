"""Delay of a job from kill -9 to its second start, and from a worker's start to its first job.

    python benchmarks/recovery_time.py [--kills 10] [--backlog 100000] [--only other-host] [--json]

celery_superfetch alone is measured, with real workers and default options on a server of its own. A
recovery time runs from the kill to the second start of the job that was running, by the clock of
this machine. Kills fall at random between two heartbeats. Other hosts are Linux namespaces
(`unshare`); where the kernel refuses them, their cases are skipped. With ``--backlog`` the kills
are repeated while so many jobs wait.

Distorted by: busy machines, by tenths of a second (starting a worker is part of some cases); the
rest is limits of seconds. Takes: six minutes for eight kills of each case without a backlog.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from compare import add_json, write_rows  # (it puts the tests on the path)

from support.apps.build import build_app
from support.hosts import Host, namespaces_available
from support.process import Process
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker, app_env

CEILING = 120.0  # seconds after which a measurement has failed
HEARTBEAT = 5.0  # seconds between two heartbeats, by default


class Bench:
    """Server, producer with the stock transport, and workers under test."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.ledger = Ledger(server.url(LEDGER_DB))
        self.client = server.client()
        self.env = app_env(server.url(), ledger_url=self.ledger.url)
        self.app = build_app({**self.env, "SUPERFETCH": "0"})
        self.workers: list[Process] = []

    def worker(self, host: str | None = None, **settings: Any) -> Worker:
        """Start a worker, in a container of that host name if one is given."""
        place = Host(host) if host else None
        one = Worker(self.env, host=place, concurrency=1, directory=self.directory, **settings)
        self.workers.append(one)
        return one

    def send(self, task: str, *args: Any, **options: Any) -> float:
        """Publish a job; return the time."""
        self.app.tasks[f"shop.{task}"].apply_async(args, **options)
        return time.time()

    def running(self, job: str, runs: int = 1) -> float:
        """Wait for the start number `runs` of a job; return its time."""
        message = f"run {runs} of {job}"
        starts = eventually(
            lambda: (found := self.ledger.starts().get(job, []))[runs - 1 :] and found,
            CEILING,
            0.005,
            message,
        )
        return float(starts[runs - 1])

    def occupy(self) -> None:
        """Start a container that does nothing, and takes the numbers of namespaces that ended."""
        log = self.directory / "occupied.log"
        argv = ["sleep", "3600"]
        place = {"log": log, "env": os.environ, "cwd": self.directory, "host": Host("other")}
        self.workers.append(Process(argv, **place))

    def pile_up(self, jobs: int) -> None:
        """Publish a backlog of that many small jobs."""
        self.send("note", "backlog", task_id="TASKID")
        raw = eventually(lambda: self.client.rpop("celery"))
        tag = json.loads(raw)["properties"]["delivery_tag"].encode()
        for _ in range(0, jobs, 1000):
            names = [str(uuid.uuid4()).encode() for _ in range(1000)]
            copies = [raw.replace(b"TASKID", name).replace(tag, name) for name in names]
            self.client.lpush("celery", *copies)

    def hold(self, job: str) -> None:
        """Publish a job that runs until it is released, before any backlog."""
        self.send("hold", job, CEILING)
        self.client.lmove("celery", "celery", "LEFT", "RIGHT")

    def control(self, command: str, one: Worker) -> None:
        """Make a worker serve the queue, or stop serving it."""
        name = next(word for word in one.log().split() if word.startswith(f"{one.name}@"))
        ask = getattr(self.app.control, command)
        if not ask("celery", reply=True, timeout=10, limit=1, destination=[name]):
            raise RuntimeError(f"{name} did not answer {command}")

    def close_workers(self) -> None:
        for one in self.workers:
            one.close()
        self.workers.clear()
        self.client.flushdb()
        self.ledger.clear()


# -- kill -9 -------------------------------------------------------------------------------------


def neighbour(bench: Bench, kills: int, hosts: tuple[str | None, str | None]) -> Iterator[float]:
    """Kill a worker at a random moment between two heartbeats; another one recovers its job."""
    stays = bench.worker(hosts[1], queues=["standby"]).wait_ready()
    dice = random.Random(0)
    for number in range(kills):
        victim = bench.worker(hosts[0]).wait_ready()
        job = _hold(bench, number)
        bench.control("add_consumer", stays)
        time.sleep(dice.uniform(0, HEARTBEAT))
        killed = time.time()
        victim.kill9_all()
        yield bench.running(job, 2) - killed
        bench.control("cancel_consumer", stays)
        bench.ledger.release(job)
        victim.close()


def _hold(bench: Bench, number: int) -> str:
    """Send a job that runs until it is released; return its name when it runs."""
    job = f"kill-{number}"
    bench.hold(job)
    bench.running(job)
    return job


def successor(bench: Bench, kills: int, elsewhere: bool) -> Iterator[float]:
    """Kill the only worker, and start a container of its name at once.

    The kernel usually gives the number of the ended pid namespace to the next one, so that the
    successor knows that the process is gone. With `elsewhere` another process has that number, as
    on another machine (a StatefulSet's pod that moved): then the successor has to wait for missed
    heartbeats.
    """
    one = bench.worker("box", name="same").wait_ready()
    for number in range(kills):
        job = _hold(bench, number)
        killed = time.time()
        one.kill9_all()
        one.close()
        if elsewhere:
            bench.occupy()
        one = bench.worker("box", name="same")
        yield bench.running(job, 2) - killed
        bench.ledger.release(job)


def pool_process(bench: Bench, kills: int) -> Iterator[float]:
    """Kill the only pool process of a worker while it runs a job, as the OOM killer does."""
    one = bench.worker().wait_ready()
    for number in range(kills):
        job = _hold(bench, number)
        killed = time.time()
        one.kill9_child()
        yield bench.running(job, 2) - killed
        bench.ledger.release(job)


# -- wake-ups ------------------------------------------------------------------------------------


def _ready_at(one: Worker) -> float:
    line = next(line for line in one.log().splitlines() if line.endswith(" ready."))
    stamp = line[1:].partition(": INFO")[0]
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def first_waiting(bench: Bench, times: int) -> Iterator[float]:
    """Yield seconds from "ready" in the log to the start of a job that waited for it."""
    for number in range(times):
        job = f"first-{number}"
        bench.send("note", job)
        one = bench.worker(neighbours=True).wait_ready()
        yield bench.running(job) - _ready_at(one)
        one.close()


def first_sent(bench: Bench, times: int) -> Iterator[float]:
    """Yield seconds from the publication of a job, right after "ready", to its start."""
    for number in range(times):
        job = f"first-{number}"
        one = bench.worker(neighbours=True)
        one.wait_log(" ready.")
        sent = bench.send("note", job)
        yield bench.running(job) - sent
        one.close()


def added_queue(bench: Bench, times: int) -> Iterator[float]:
    """Yield seconds from the publication to an added queue, right after the worker's answer, to the
    start."""
    bench.worker(neighbours=True).wait_ready()
    for number in range(times):
        name = f"added-{number}"
        bench.app.control.add_consumer(name, reply=True, timeout=10, limit=1)
        sent = bench.send("note", name, queue=name)
        yield bench.running(name) - sent


# -- the program ---------------------------------------------------------------------------------

Measure = Callable[[Bench, int], Iterator[float]]
#: Name -> (what it says, whether it needs namespaces, how to measure it).
MEASURES: dict[str, tuple[str, bool, Measure]] = {
    "pool-process": (
        "kill -9 of a pool process -> second start, same worker",
        False,
        pool_process,
    ),
    "same-host": (
        "kill -9 -> second start, same host",
        False,
        lambda bench, kills: neighbour(bench, kills, (None, None)),
    ),
    "successor": (
        "kill -9 -> second start, successor in the same container",
        True,
        lambda bench, kills: successor(bench, kills, elsewhere=False),
    ),
    "moved-successor": (
        "kill -9 -> second start, successor in a new container",
        True,
        lambda bench, kills: successor(bench, kills, elsewhere=True),
    ),
    "other-host": (
        "kill -9 -> second start, another host",
        True,
        lambda bench, kills: neighbour(bench, kills, ("here", "there")),
    ),
}
WAKE_UPS: dict[str, tuple[str, bool, Measure]] = {
    "first-waiting": ('"ready" -> start of a waiting job, mingle and gossip', False, first_waiting),
    "first-sent": ('job sent after "ready" -> start, mingle and gossip', False, first_sent),
    "added-queue": ("job sent to an added queue -> start", False, added_queue),
}


@contextmanager
def a_bench() -> Iterator[Bench]:
    with Server() as server, tempfile.TemporaryDirectory() as directory:
        bench = Bench(server, Path(directory))
        try:
            yield bench
        finally:
            bench.close_workers()


def run(times: int, backlog: int, only: list[str], say: Callable[[str], None]) -> list[dict]:
    """Measure; return a row for each."""
    rows = []
    plan = [(name, 0, *what) for name, what in MEASURES.items()]
    plan += [(name, backlog, *what) for name, what in MEASURES.items() if backlog]
    plan += [(name, 0, *what) for name, what in WAKE_UPS.items()]
    for name, waiting, title, isolated, measure in plan:
        if only and name not in only:
            continue
        if isolated and not namespaces_available()[0]:
            say(f"{title}: skipped, {namespaces_available()[1]}")
            continue
        with a_bench() as bench:
            if waiting:
                bench.pile_up(waiting)
            seconds = []
            for one in measure(bench, times):
                seconds.append(round(one, 3))
                say(f"{title}, {waiting} waiting: {one:.3f} s")
        rows.append(
            {
                "name": name,
                "title": title,
                "backlog": waiting,
                "median": round(statistics.median(seconds), 3),
                "min": min(seconds),
                "max": max(seconds),
                "seconds": seconds,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="measurements of each kind")
    parser.add_argument("--backlog", type=int, default=100_000, help="waiting jobs (0: none)")
    parser.add_argument("--only", action="append", default=[], choices=[*MEASURES, *WAKE_UPS])
    add_json(parser)
    asked = parser.parse_args()
    rows = run(asked.kills, asked.backlog, asked.only, lambda text: print(text, file=sys.stderr))
    if asked.json:
        write_rows(asked.json, rows)
    print(f"{'seconds':<58}{'waiting':>9}{'median':>9}{'min':>9}{'max':>9}")
    for row in rows:
        figures = "".join(f"{row[key]:>9.3f}" for key in ("median", "min", "max"))
        print(f"{row['title']:<58}{row['backlog']:>9}{figures}")


if __name__ == "__main__":
    main()
