"""Throughput of a busy fleet while a job on probation waits for isolation.

    python benchmarks/suspects.py [--scale 10] [--rounds 3] [--only 3x4] [--path OTHER_CHECKOUT]
        [--json]

celery_superfetch is compared with itself, before a job goes on probation. Real workers with threads
never run out of short jobs, and some of their threads have long ones. The rate of short jobs counts
from the moment the suspect is there, for eleven times the first quiesce: one quiesce and the work
after it. Where long jobs take 80 s, it counts until the suspect has run, if that is later. The last
case has only 120 jobs of 2 s, with 20 suspects and without.

All times but those of short jobs are a tenth of the real ones (80 s or an hour for a long job, 60 s
for the first quiesce); ``--scale 1`` takes 20 minutes for each run.

The aim: at least 0.9 of the rate before, and the suspect runs.

Distorted by: other processes on the machine, if they come or go between the two halves of a run.
Takes: twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from compare import add_json, write_rows  # (it puts the tests on the path)

from celery_superfetch.model.job import digest
from celery_superfetch.store.keys import Keys
from support.apps.build import build_app
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.workers.worker import TESTS, Worker, app_env

FIRST_REST, WORK, SHORT = 60.0, 10, 0.1
#: Seconds between two reads of the ledger; short jobs that always wait, more than start meanwhile.
LOOK, WAITING = 0.05, 50
#: Name -> workers, threads of each, how many of these have long jobs, and their seconds.
CASES = {
    "3x4, half of it jobs of 80 s": (3, 4, 2, 80.0),
    "2x2, half of it jobs of 80 s": (2, 2, 1, 80.0),
    "2x2, half of it jobs of an hour": (2, 2, 1, 3600.0),
}
#: Workers, threads, jobs and suspects of the case without long ones.
ALIKE = (1, 20, 120, 20)


class Fleet:
    """Workers, and the producer that keeps them busy."""

    def __init__(self, server: Server, directory: Path, scale: float, path: str) -> None:
        self.scale, self.long = scale, 0.0
        self.directory = directory
        self.client = server.client()
        self.ledger = Ledger(server.url(LEDGER_DB))
        conf = {"worker_prefetch_multiplier": 1, "task_ignore_result": True}
        self.env = app_env(server.url(), ledger_url=self.ledger.url, conf=conf)
        self.app = build_app({**self.env, "SUPERFETCH": "0"})
        self.env |= {"HAPPENS": "rests", "RESTS": f"{FIRST_REST / scale},{WORK}"}
        if path:
            self.env["PYTHONPATH"] = os.pathsep.join([path, str(TESTS)])
        #: When each short job ended, and each suspect.
        self.shorts: list[float] = []
        self.suspects: list[float] = []
        self._read = 0

    @contextmanager
    def workers(self, count: int, threads: int) -> Iterator[None]:
        with ExitStack() as stack:
            started = [
                Worker(
                    self.env,
                    pool="threads",
                    concurrency=threads,
                    queues=["celery", f"long-{number}"],
                    loglevel="ERROR",
                    directory=self.directory,
                )
                for number in range(count)
            ]
            for one in started:
                stack.callback(one.close)
            while len(self.client.keys("superfetch:owner:*")) < count:
                time.sleep(LOOK)
            yield

    def send(self, job: str, seconds: float, queue: str = "celery") -> None:
        self.app.tasks["shop.hold"].apply_async((job, seconds), queue=queue)

    def send_suspects(self, count: int, seconds: float) -> None:
        """Put jobs on probation, as if each had run alongside others when two owners died."""
        keys = Keys()
        for _ in range(count):
            self.send("suspect", seconds, "aside")
            raw: Any = self.client.rpop("aside")
            counters = {"strikes": 2, "recoveries": 2, "solo_runs": 1}
            self.client.hset(keys.history(digest(raw)), mapping=counters)
            self.client.set(keys.has_history, 1)
            self.client.lpush(keys.probation("celery"), raw)
            self.client.sadd(keys.on_probation, "celery")

    def look(self) -> list[str]:
        """Record the jobs that have ended since the last call; return the long ones."""
        lines: Any = self.ledger._redis.lrange(self.ledger.key, self._read, -1)
        self._read += len(lines)
        ended = [line for line in map(json.loads, lines) if line["event"] == "finished"]
        self.shorts += [line["at"] for line in ended if line["job"] == "short"]
        self.suspects += [line["at"] for line in ended if line["job"] == "suspect"]
        return [line["job"] for line in ended if line["job"].startswith("long")]

    def keep_busy(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for queue in self.look():
                self.send(queue, self.long / self.scale, queue)
            for _ in range(WAITING - int(self.client.llen("celery"))):
                self.send("short", SHORT)
            time.sleep(LOOK)


def flow(
    fleet: Fleet, workers: int, threads: int, long: int, seconds: float
) -> tuple[float, float, float | None]:
    """Return the rate of short jobs in terms of that before, its minimum for the time of one
    quiesce, and when the suspect ran (in seconds of the real constants)."""
    dice, rest = random.Random(1), FIRST_REST / fleet.scale
    fleet.long, in_time = seconds, seconds < WORK * FIRST_REST
    for number in range(workers):
        for _ in range(long):
            first = dice.uniform(0, seconds) if in_time else seconds
            fleet.send(f"long-{number}", first / fleet.scale, f"long-{number}")
    with fleet.workers(workers, threads):
        fleet.keep_busy(rest)  # Celery is slow to start
        began = time.time()
        fleet.keep_busy(4 * rest)
        came = time.time()
        fleet.send_suspects(1, SHORT)
        fleet.keep_busy((1 + WORK) * rest)
        while in_time and not fleet.suspects and time.time() < came + 100 * rest:
            fleet.keep_busy(rest)
        ended = time.time()
    before = rate(fleet.shorts, began, came)
    parts = int((ended - came) / rest)
    least = min(rate(fleet.shorts, came + n * rest, came + (n + 1) * rest) for n in range(parts))
    ran = (fleet.suspects[0] - came) * fleet.scale if fleet.suspects else None
    return rate(fleet.shorts, came, ended) / before, least / before, ran


def rate(ends: Sequence[float], since: float, until: float) -> float:
    return sum(since <= end < until for end in ends) / (until - since)


def alike(fleet: Fleet, suspects: int) -> tuple[float, float]:
    """Return seconds until all jobs, and all suspects, have run; by the real constants."""
    workers, threads, jobs, _ = ALIKE
    seconds = 2.0 / fleet.scale
    fleet.send_suspects(suspects, seconds)
    for _ in range(jobs):
        fleet.send("short", seconds)
    began = time.time()
    with fleet.workers(workers, threads):
        while len(fleet.shorts) < jobs or len(fleet.suspects) < suspects:
            fleet.look()
            time.sleep(LOOK)
            if not fleet.shorts and not fleet.suspects:
                began = time.time()  # when the first have ended, less what they took
    began -= seconds
    return (max(fleet.shorts) - began) * fleet.scale, (time.time() - began) * fleet.scale


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=10.0, help="all times are divided by this")
    parser.add_argument("--rounds", type=int, default=3, help="of each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--path", default="", help="where to import the package from")
    add_json(parser)
    args = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []

    @contextmanager
    def fleet() -> Iterator[Fleet]:
        with Server() as server, tempfile.TemporaryDirectory() as name:
            yield Fleet(server, Path(name), args.scale, args.path)

    for name, shape in CASES.items():
        rounds = []
        for _ in range(args.rounds if args.only in name else 0):
            with fleet() as one:
                rounds.append(flow(one, *shape))
            share, least, ran = rounds[-1]
            after = "did not run" if ran is None else f"ran after {ran:.0f} s"
            print(f"{name}: {share:.2f}, least {least:.2f}, {after}", flush=True)
        if rounds:
            print(f"{name}: median {statistics.median(share for share, *_ in rounds):.2f}")
            titles = ("rate_share", "least_rate_share", "suspect_ran_after_s")
            rows.append({"case": name, **dict(zip(titles, zip(*rounds, strict=True), strict=True))})
    name = "20 suspects among 120 jobs of 2 s"
    for suspects in (0, ALIKE[-1]) if args.only in name else ():
        with fleet() as one:
            jobs, everything = alike(one, suspects)
        print(f"{name}: {suspects} suspects: jobs {jobs:.0f} s, all {everything:.0f} s", flush=True)
        rows.append({"case": name, "suspects": suspects, "jobs_s": jobs, "all_s": everything})
    if args.json:
        write_rows(args.json, rows)


if __name__ == "__main__":
    main()
