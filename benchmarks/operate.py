"""Cost of operators' commands and of workers' passes in a large database.

    python benchmarks/operate.py [--lists 20 2000] [--rounds 4] [--only jobs] [--json]

celery_superfetch alone is measured. A database is built for each number of queues: 100,000
scheduled jobs, 10,000 in flight in 200 owners, 1,000 on probation with strikes, 1,000 in the dead
set, and one waiting in each queue. A command runs in a process of its own; ``nothing`` is what each
command pays for its imports. What workers do runs in this process. Each row has the CPU of client
and server, the numbers of commands, sends (a pipeline is one) and scripts, and the longest script
and other command by the server's slow log: so long no other client gets an answer.

A row is the minimum of the rounds, for scripts one by one: the work is the same in each round, and
another process on the machine can only add to it.

Distorted by: other processes on the machine; four rounds get closer to the minimum than two. Takes:
five minutes for two rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from compare import machine  # (it puts the tests on the path)
from sent import watch_sent

from support.servers.server import Server
from support.workers.worker import app_env, process_env

RESULT = Path(__file__).resolve().parent / "results" / "operate.json"
OWNERS_PER_HOST = 10
LISTS_PER_OWNER = 100  # at most; a queue list of many is served by a few owners
BATCH = 1000
DUE = 10_000  # scheduled jobs that one look releases
REAPED = 20  # owners whose jobs one pass recovers
#: ms that no script takes.
LIMIT = 5.0
#: Name -> the command; the page is asked for in its process.
COMMANDS = {
    "nothing": ("jobs", "--help"),
    "status": ("status",),
    "status --json": ("status", "--json"),
    "check": ("check", "--timeout", "60"),
    "doctor": ("doctor",),
    "metrics --once": ("metrics", "--once"),
    "superfetch-check": ("superfetch-check", "--timeout", "60"),
    "superfetch-check --this-host": ("superfetch-check", "--this-host"),
    "jobs": ("jobs",),
    "jobs --task nomatch": ("jobs", "--task", "nomatch"),
    "jobs --state running": ("jobs", "--state", "running"),
    "jobs --state reserved": ("jobs", "--state", "reserved"),
    "jobs --state scheduled": ("jobs", "--state", "scheduled"),
    "jobs --state probation": ("jobs", "--state", "probation"),
    "jobs --state struck": ("jobs", "--state", "struck"),
    "page: the overview": ("page", "/"),
    "page: jobs with strikes": ("page", "/jobs?state=struck"),
    "rollback --dry-run": ("rollback", "--dry-run"),
    "dead list": ("dead", "list"),
    "reap": ("reap",),
    "dead retry --all": ("dead", "retry", "--all", "--yes"),
}


@dataclass
class Cost:
    """Cost of one operation; CPU and time in ms."""

    client_cpu: float
    server_cpu: float
    commands: int
    sends: int
    output_kb: float
    script_times: list[float]  # in the order in which they ran
    command_times: list[float]

    def least(self, other: Cost) -> Cost:
        """Return the minimum of two rounds, which run the same scripts in the same order."""
        return Cost(
            min(self.client_cpu, other.client_cpu),
            min(self.server_cpu, other.server_cpu),
            min(self.commands, other.commands),
            min(self.sends, other.sends),
            min(self.output_kb, other.output_kb),
            _least(self.script_times, other.script_times),
            _least(self.command_times, other.command_times),
        )

    def row(self) -> dict[str, float]:
        row = {name: round(value, 1) for name, value in vars(self).items() if "times" not in name}
        times = self.script_times, self.command_times
        longest = [max(some, default=0.0) for some in times]
        names = ("scripts", "longest_script", "longest_command")
        return {**row, **dict(zip(names, (len(times[0]), *longest), strict=True))}


def _least(one: list[float], other: list[float]) -> list[float]:
    if len(one) != len(other):
        one, other = sorted(one)[::-1], sorted(other)[::-1]
    return [*map(min, one, other)]


class Fleet:
    """Large database, and what its workers do there."""

    def __init__(self, server: Server, lists: int, args: argparse.Namespace) -> None:
        from support.workers.bench import Bench

        self.bench = Bench(server.client(), dead_limit=max(args.dead, 1))
        self.names = [f"list-{number}" for number in range(lists)]
        self.owners: list[Any] = []
        self.dying: list[Any] = []
        self._fill(args)

    def _fill(self, args: argparse.Namespace) -> None:
        from celery_superfetch.model.job import claim_id, digest
        from celery_superfetch.store.private_lists import WAITS
        from support.workers.bench import elsewhere, payload

        bench, keys, names = self.bench, self.bench.keys, self.names
        bench.client.flushall()
        for number in range(args.owners):
            process = elsewhere(f"host-{number // OWNERS_PER_HOST}", number + 1)
            some = min(len(names), LISTS_PER_OWNER)
            lists = [names[(number * 10 + at) % len(names)] for at in range(some)]
            owner = bench.owner(process, lists=lists, node=f"celery@w{number}")
            self.owners.append(owner)
            with bench.client.pipeline(transaction=False) as pipe:
                for at in range(args.in_flight // args.owners):
                    name, job = lists[at % some], payload(f"f{number}-{at}")
                    private, claim = keys.private(owner.owner), claim_id(at + 1, name)
                    pipe.hset(private, claim, job)
                    if at % 10:  # one of ten runs
                        pipe.hset(private, WAITS + claim, "")
                pipe.execute()
        now = bench.database.server_time()
        for first in range(0, args.scheduled, BATCH):
            with bench.client.pipeline(transaction=False) as pipe:
                for number in range(first, min(first + BATCH, args.scheduled)):
                    name, due = names[number % len(names)], now + 86_400_000 + number
                    pipe.zadd(keys.parked_of(name), {self._member(number): due})
                    pipe.zadd(keys.parked, {name: due}, lt=True)
                pipe.execute()
        with bench.client.pipeline(transaction=False) as pipe:
            for number in range(args.probation):
                name = names[number % len(names)]
                raw = payload(f"p{number}", name)
                history = keys.history(digest(raw))
                pipe.lpush(keys.probation(name), raw)
                pipe.sadd(keys.on_probation, name)
                pipe.hset(history, mapping={"strikes": 2, "recoveries": 2, "solo_runs": 1})
                pipe.expire(history, 86_400)
            pipe.set(keys.has_history, 1, ex=86_400)
            for name in names:
                pipe.lpush(keys.queue(name), payload(f"w-{name}", name))
            pipe.execute()

    def _member(self, number: int) -> bytes:
        from support.workers.bench import payload

        name = self.names[number % len(self.names)]
        return f'"s{number}" x-{number}\n'.encode() + payload(f"s{number}", name)

    def prepare(self, round: int, args: argparse.Namespace) -> None:
        """Prepare what a round changes: due jobs, dead owners, and the dead set."""
        from dead_set import fill as kill

        keys = self.bench.keys
        with self.bench.client.pipeline(transaction=False) as pipe:
            for number in range(round * DUE, (round + 1) * DUE):
                name = self.names[number % len(self.names)]
                pipe.zadd(keys.parked_of(name), {self._member(number): 1}, xx=True)
                pipe.zadd(keys.parked, {name: 1}, lt=True)
            pipe.execute()
        self.dying = self.owners[round * REAPED : (round + 1) * REAPED]
        kill(self.bench, args.dead, 1000)

    def refresh(self) -> None:
        """Set the last heartbeat of all live owners to now."""
        bench = self.bench
        now, heard = bench.database.server_time(), bench.registry.owners()
        bench.client.zadd(bench.keys.owners, dict.fromkeys(heard, now))

    def heartbeat(self) -> None:
        bench, owner = self.bench, self.owners[0]
        bench.registry.heartbeat(owner, bench.registry.heartbeat(owner, 0, {}).now, {})

    def quiesce(self) -> None:
        from celery_superfetch.store.queues import Suspects

        named = self.bench.registry.heartbeat(self.owners[0], 0, {}).probation
        Suspects(self.bench.database).ask_quiesce("owner", [*islice(named, 100)], 60.0, 10)

    def make_pass(self) -> None:
        from celery_superfetch.app.reaper import record_pass

        reaper = self.bench.reaper()
        record_pass(reaper, reaper.reap())

    def make_pass_over_dead(self) -> None:
        """Mark the dying owners as dead, which is a part of the cost, and make a pass."""
        for owner in self.dying:
            self.bench.mark(owner)
        self.make_pass()

    def release(self) -> None:
        from celery_superfetch.store.parked_jobs import ParkedJobs

        ParkedJobs(self.bench.database).release({})

    @property
    def acts(self) -> Mapping[str, Callable[[], None]]:
        return {
            "two heartbeats": self.heartbeat,
            "a heartbeat, and to ask for a quiesce": self.quiesce,
            "the first pass": self.make_pass,
            "a pass at rest": self.make_pass,
            "release of 10,000 due jobs": self.release,
            f"a pass that recovers {REAPED} dead workers' jobs": self.make_pass_over_dead,
        }


def run(words: Sequence[str]) -> None:
    """Run one command in this process; the last line of stderr counts what it sent."""
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

            browser = TestClient(create_app(app), base_url="http://localhost")
            print(browser.get(words[1]).text)
        elif words[0] == "superfetch-check":
            from celery_superfetch.console.probe import main as probe

            probe(words[1:])
        else:
            from celery.__main__ import main as celery

            sys.argv = ["celery", "-A", "support.apps.shop", "superfetch", *words]
            celery()
    finally:
        print(*sent, file=sys.stderr)


def command(words: Sequence[str], url: str) -> tuple[float, int, int, float]:
    """Run a command in a process. Return its CPU (ms), commands, sends, and kB of output."""
    env = process_env({**app_env(url, ledger_url=""), "CELERY_BROKER_URL": url})
    before = _cpu()
    argv = [sys.executable, __file__, "--run", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    commands, sends = map(int, done.stderr.splitlines()[-1].split())
    said = len(done.stdout) + len(done.stderr)
    return (_cpu() - before) * 1000, commands, sends, said / 1000


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(server: Server, act: Callable[[], tuple[float, int, int, float]]) -> Cost:
    """Return the cost of an act, which returns CPU of the client, commands, sends and output."""
    client = server.client()
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 1_000_000)
    client.slowlog_reset()
    client.ping()  # otherwise the next command pays for what this has freed
    before = client.info("cpu")
    own, commands, sends, output = act()
    after = client.info("cpu")
    client.config_set("slowlog-log-slower-than", -1)
    used = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    times: dict[bool, list[float]] = {True: [], False: []}
    for entry in sorted(client.slowlog_get(1_000_000), key=lambda entry: entry["id"]):
        name = entry["command"].upper()
        if not name.startswith((b"INFO", b"SLOWLOG", b"CONFIG", b"PING")):
            times[name.startswith(b"EVAL")].append(entry["duration"] / 1000)
    return Cost(own, used * 1000, commands, sends, output, times[True], times[False])


def here(act: Callable[[], None], sent: list[int]) -> tuple[float, int, int, float]:
    """Run an act in this process, which counts its commands in ``sent``."""
    sent[:] = 0, 0
    begun = time.process_time()
    act()
    return (time.process_time() - begun) * 1000, *sent, 0.0


def costs(server: Server, fleet: Fleet, only: str, sent: list[int]) -> Iterator[tuple[str, Cost]]:
    """Yield the costs of one round: first of what reads, then of what changes the database."""
    *reading, (retry, words) = COMMANDS.items()
    acts = [(name, lambda act=act: here(act, sent)) for name, act in fleet.acts.items()]
    before = [(name, lambda words=words: command(words, server.url())) for name, words in reading]
    after = [(retry, lambda: command(words, server.url()))]
    for name, act in (*acts[:4], *before, *acts[4:], *after):
        if only in name:
            fleet.refresh()
            yield name, measured(server, act)


def show(lists: int, rows: Mapping[str, Mapping[str, float]]) -> None:
    titles = "client", "server", "commands", "sends", "scripts", "longest", "other", "output"
    print(f"\n{f'{lists:,} queues':46}" + "".join(f"{title:>10}" for title in titles))
    for name, row in rows.items():
        print(
            f"{name:46}{row['client_cpu']:>7.0f} ms{row['server_cpu']:>7.1f} ms"
            f"{row['commands']:>10,}{row['sends']:>10,}{row['scripts']:>10,}"
            f"{row['longest_script']:>7.1f} ms{row['longest_command']:>7.1f} ms"
            f"{row['output_kb']:>7.0f} kB",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        return run(sys.argv[2:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=int, nargs="+", default=[20, 2_000], help="queues")
    for name, number, what in (
        ("--owners", 200, "workers"),
        ("--in-flight", 10_000, "jobs that they hold"),
        ("--scheduled", 100_000, "jobs for later"),
        ("--probation", 1_000, "suspects"),
        ("--dead", 1_000, "jobs in the dead set"),
        ("--rounds", 4, "of which the least is shown"),
    ):
        parser.add_argument(name, type=int, default=number, help=f"{what} ({number:,})")
    parser.add_argument("--only", default="", help="what has this in its name")
    parser.add_argument("--json", nargs="?", type=Path, const=RESULT, help=f"({RESULT.name})")
    args = parser.parse_args()
    sent, tables = [0, 0], dict[int, dict[str, dict[str, float]]]()

    def note(commands: int, sends: int) -> None:
        sent[0] += commands
        sent[1] += sends

    watch_sent(note)
    logging.getLogger("celery_superfetch").setLevel(logging.CRITICAL + 1)
    for lists in args.lists:
        table: dict[str, Cost] = {}
        with Server() as server:
            fleet = Fleet(server, lists, args)
            for round in range(args.rounds):
                fleet.prepare(round, args)
                for name, cost in costs(server, fleet, args.only, sent):
                    table[name] = cost.least(table.get(name, cost))
        tables[lists] = {name: cost.row() for name, cost in table.items()}
        show(lists, tables[lists])
        slow = [name for name, row in tables[lists].items() if row["longest_script"] > LIMIT]
        if slow:
            print(f"A script took more than {LIMIT:g} ms: {', '.join(slow)}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "queues": tables}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
