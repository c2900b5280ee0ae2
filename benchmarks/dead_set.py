"""Time of each thing that an operator does with a dead set of ten thousand jobs.

    python benchmarks/dead_set.py [--jobs 10000] [--bytes 1000] [--json]

celery_superfetch alone is measured. The script that dead-letters jobs fills the dead set of a
server of its own; then each step runs once. A step's time is that of client and server together.
Its longest block is the longest script or read of the server's slow log: so long no other client
gets an answer. ``--json`` prints the rows as JSON.

Distorted by: other processes on the machine; each step runs only once. Takes: a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from celery import states

from celery_superfetch import DeadSet, PoisonPill
from support.apps.build import build_app
from support.servers.server import Server
from support.servers.work import Work, noted
from support.workers.bench import Bench, payload
from support.workers.worker import app_env

OWNER = "bench|1|nonce"
#: One job in ten is of the task that is retried by filter.
PART = 10
#: us from which on the slow log has a command; logging each would cost more than running it.
NOTED = 20


def fill(bench: Bench, jobs: int, size: int) -> None:
    """Dead-letter jobs, a hundred in a round trip, as a reaper does."""
    padding = os.urandom(size // 2).hex()
    for at in range(0, jobs, 100):
        numbers = range(at, min(at + 100, jobs))
        raws = [payload(f"id-{n}", task=_task(n), padding=padding) for n in numbers]
        given = bench.give(OWNER, "mail", raws)
        bench.scripts.run_all(
            [bench.dead_set.kill_call(bench.recovery(j), marked=False) for j in given]
        )


def _task(number: int) -> str:
    return "shop.add" if number % PART == 0 else "shop.note"


def fail_all(app: Any, jobs: int) -> None:
    """Store the result that a dead-lettered job leaves, for the jobs that are retried by filter."""
    for number in range(0, jobs, PART):
        app.backend.store_result(f"id-{number}", PoisonPill("was killed"), states.FAILURE)


def steps(bench: Bench, dead: DeadSet, jobs: int, size: int) -> Iterator[Any]:
    """Yield name and function of each step, in order; a function returns its number of jobs."""
    part = jobs // PART

    def retry_part() -> int:
        done = dead.retry_all(task="shop.add", to="slow")
        assert all(one.error is None for one in done)
        return len(done)

    yield "kill", lambda: fill(bench, jobs, size) or jobs
    yield "results of those to be retried", lambda: fail_all(dead.app, jobs) or part
    yield "list the first page", lambda: len(dead.page())
    yield "list the first page of a task", lambda: len(dead.page(task="shop.add"))
    yield "list the last page", lambda: len(dead.page(jobs - 50))
    yield "look through all", lambda: len(list(dead))
    yield "find one by its task id", lambda: bool(dead.get("id-7")) + 0
    yield "retry one by its id", lambda: bool(dead.retry(dead.page()[1].id)) + 0
    yield "retry by filter", retry_part
    yield "list all", lambda: len(dead.page(0, jobs))
    yield "delete 1000", lambda: dead.delete(*[job.id for job in dead.page(0, 1000)])
    yield "purge", dead.purge


def measure(name: str, do: Callable[[], int], bench: Bench) -> dict[str, Any]:
    with noted(bench.client, NOTED) as work:
        begun = time.perf_counter()
        number = do()
        seconds = time.perf_counter() - begun
    return {
        "step": name,
        "jobs": number,
        "seconds": round(seconds, 4),
        "longest_block_us": {command.name: command.micros for command in _longest(work)},
    }


def _longest(work: Work) -> Sequence[Any]:
    """Return the longest script and the longest read; commands of a script are part of it."""
    scripts = [c for c in work.longest(len(work.commands)) if c.name == "evalsha"][:1]
    reads = ("zscan", "hmget", "zrange")
    others = [c for c in work.longest(len(work.commands)) if c.name in reads][:1]
    return [*scripts, *others]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=1000, help="of padding in each payload")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    server = Server().start()
    try:
        client = server.client()
        bench = Bench(client, dead_limit=max(args.jobs, 1))
        options = {"dead_limit": max(args.jobs, 1)}
        app = build_app(app_env(server.url(), ledger_url="", options=options))
        with DeadSet(app, client) as dead:
            rows = [
                measure(name, do, bench) for name, do in steps(bench, dead, args.jobs, args.bytes)
            ]
        version = client.info("server")
    finally:
        server.close()
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    name = version.get("server_name", "redis")
    number = version.get("valkey_version", version["redis_version"])
    print(f"{name} {number}, {args.jobs} dead jobs")
    print(f"{'step':32}{'jobs':>7}{'time':>11}   longest block (script; read)")
    for row in rows:
        blocks = "; ".join(f"{n} {us} us" for n, us in row["longest_block_us"].items())
        print(
            f"{row['step']:32}{row['jobs']:>7}{row['seconds'] * 1000:>8.1f} ms"
            f"   {blocks or f'< {NOTED} us'}"
        )


if __name__ == "__main__":
    main()
