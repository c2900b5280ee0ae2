"""What the commands of operators cost beside a large database; each runs in a process of its own.

    python benchmarks/operate.py [--owners 1000] [--lists 80] [--waiting 100000] [--only jobs]

For each: seconds to the first output and in all, those of CPU that it used, and what it sent:
commands (a script is one) and sends (a pipeline is one). ``nothing`` is what all pay for imports.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from compare import lines  # noqa: F401  (it puts the tests on the path)
from sent import watch_sent

from support.servers.server import Server
from support.workers.worker import app_env, process_env

OWNERS_PER_HOST = 10
BATCH = 1000
#: Name -> the command; the page is asked for in its process.
COMMANDS = {
    "nothing": ("jobs", "--help"),
    "status": ("status",),
    "status --json": ("status", "--json"),
    "jobs": ("jobs",),
    "jobs --task nomatch": ("jobs", "--task", "nomatch"),
    "jobs --task shop.*": ("jobs", "--task", "shop.*"),
    "jobs --state running": ("jobs", "--state", "running"),
    "jobs --state struck": ("jobs", "--state", "struck"),
    "check": ("check", "--timeout", "60"),
    "doctor": ("doctor",),
    "metrics --once": ("metrics", "--once"),
    "dead list": ("dead", "list"),
    "superfetch-check": ("superfetch-check", "--timeout", "60"),
    "superfetch-check --this-host": ("superfetch-check", "--this-host"),
    "page: the overview": ("page", "/"),
    "page: jobs with strikes": ("page", "/jobs?state=struck"),
}


def fill(server: Server, args: argparse.Namespace) -> None:
    """Owners with jobs in flight, jobs that wait, and a dead set."""
    # What a command does not load must not be loaded here.
    from dead_set import fill as kill

    from celery_superfetch.app.reaper import note
    from celery_superfetch.model.job import claim_id
    from celery_superfetch.store.private_lists import WAITS
    from support.workers.bench import Bench, elsewhere, payload

    bench = Bench(server.client(), dead_limit=max(args.dead, 1))
    names = [f"list-{number}" for number in range(args.lists)]
    for number in range(args.owners):
        process = elsewhere(f"host-{number // OWNERS_PER_HOST}", number + 1)
        owner = bench.owner(process, lists=names, node=f"celery@w{number}")
        # One runs, the others are reserved: each from a list of its own.
        with bench.client.pipeline(transaction=False) as pipe:
            for at in range(args.in_flight):
                name, job = names[(number + at) % args.lists], payload(f"f{number}-{at}")
                private, claim = bench.keys.private(owner.owner), claim_id(at + 1, name)
                pipe.hset(private, claim, job)
                if at > 0:
                    pipe.hset(private, WAITS + claim, "")
            pipe.execute()
    for at in range(0, args.waiting, BATCH):
        jobs = [payload(f"w{n}") for n in range(at, min(at + BATCH, args.waiting))]
        bench.push(names[at // BATCH % args.lists], *jobs)
    kill(bench, args.dead, 1000)
    reaper = bench.reaper()
    note(reaper, reaper.reap())


def run(words: Sequence[str]) -> None:
    """One command, in this process; what it sent is told at the end of stderr."""
    sent = [0, 0]

    def note(commands: int, sends: int) -> None:
        sent[0] += commands
        sent[1] += sends

    watch_sent(note)
    try:
        if words[0] == "page":
            from starlette.testclient import TestClient

            from celery_superfetch.console.web import create_app
            from support.apps.shop import app

            print(len(TestClient(create_app(app)).get(words[1]).text))
        elif words[0] == "superfetch-check":
            from celery_superfetch.console.probe import main as probe

            probe(words[1:])
        else:
            from celery.__main__ import main as celery

            sys.argv = ["celery", "-A", "support.apps.shop", "superfetch", *words]
            celery()
    finally:
        print(*sent, file=sys.stderr)


def measured(words: Sequence[str], url: str) -> Iterator[float]:
    """Seconds to the first output, and in all; those of CPU; commands and sends."""
    env = process_env({**app_env(url, ledger_url=""), "CELERY_BROKER_URL": url})
    before, began = _cpu(), time.perf_counter()
    with subprocess.Popen(
        [sys.executable, __file__, "--run", *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stderr
        select.select([process.stdout, process.stderr], [], [])  # what one who waits sees first
        yield time.perf_counter() - began
        process.stdout.read()
        told = process.stderr.read().splitlines()
    yield time.perf_counter() - began
    yield _cpu() - before
    yield from map(int, told[-1].split())


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        return run(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, number, what in (
        ("--owners", 1_000, "workers, each of all lists"),
        ("--lists", 80, "queues"),
        ("--in-flight", 10, "jobs that each worker holds"),
        ("--waiting", 100_000, "jobs in the queues"),
        ("--dead", 10_000, "jobs in the dead set"),
    ):
        parser.add_argument(name, type=int, default=number, help=f"{what} ({number:,})")
    parser.add_argument("--only", default="", help="commands whose name contains this")
    args = parser.parse_args()
    with Server() as server:
        fill(server, args)
        print(f"{'':30}{'first':>8}{'all':>8}{'CPU':>8}{'commands':>10}{'sends':>8}", flush=True)
        for name, words in COMMANDS.items():
            if args.only in name:
                first, whole, cpu, commands, sends = measured(words, server.url())
                times = f"{first:>7.2f}s{whole:>7.2f}s{cpu:>7.2f}s"
                print(f"{name:30}{times}{commands:>10,}{sends:>8,}", flush=True)
    return None


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
