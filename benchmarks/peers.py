"""Outcome of worker deaths, long jobs and crashing jobs with each contender.

    python benchmarks/peers.py [--only "lost jobs"] [--jobs 12000] [--kills 30] [--json]

celery_superfetch, stock and celery-redis-plus go through the same failures: the figures of
docs/inside/comparison.md about other projects that no other benchmark has. Each case has a server
and workers of its own, with late ack, task_reject_on_worker_lost and a prefetch multiplier of 4. An
option that a case's name does not mention has the contender's default. The result of a case is a
sentence with counts or times, from a ledger in which each job writes its starts and ends.

Distorted by: chance, since a job is lost only if a kill falls between two commands: one run of 30
kills may lose none with stock. Busy machines lengthen times by seconds. Takes: an hour, most of it
waiting: "recovery" waits six minutes for celery-redis-plus, and a minute for stock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from compare import OURS, PLUS, STOCK, TRANSPORTS, add_json, machine, without_plus, write_rows

from support.apps.build import build_app
from support.servers.ledger import LEDGER_DB, Ledger
from support.servers.server import Server
from support.waiting import eventually
from support.workers.worker import Worker, app_env

PATIENCE = 600.0
#: Jobs that are due at once.
DUE = 3000
#: Stock looks for expired jobs every second instead of every hundred.
HASTE = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}
#: Late ack, and a lost pool process fails its job.
ALONE = {"task_annotations": {"*": {"reject_on_worker_lost": False}}}
ON_LOSS = {
    "task_retry_on_worker_lost": True,
    "task_annotations": {"*": {"max_retries": 3, "default_retry_delay": 1}},
}


class Place:
    """Server, producer and workers of one contender; all end with it."""

    def __init__(self, contender: str, directory: Path, server: Server, **conf: Any) -> None:
        options = conf.pop("options", {})
        if contender == PLUS:
            conf["broker_transport"] = TRANSPORTS[PLUS]
        elif contender == STOCK:
            options = {**HASTE, **options} if options else options
        if contender != OURS:
            conf["broker_transport_options"] = options
        self.server, self.directory = server, directory
        ledger = server.url(LEDGER_DB)
        self.env = app_env(server.url(), ledger_url=ledger, superfetch=contender == OURS, conf=conf)
        self.app, self.ledger = build_app(self.env), Ledger(ledger)
        self.workers: list[Worker] = []

    def worker(self, **settings: Any) -> Worker:
        worker = Worker(self.env, directory=self.directory, **settings)
        self.workers.append(worker)
        return worker.wait_ready()

    def send(self, task: str, *args: Any) -> Any:
        return self.app.tasks[f"shop.{task}"].apply_async(args)

    def starts(self, job: str) -> list[float]:
        return self.ledger.starts().get(job, [])

    def started(self, job: str, times: int = 1, within: float = PATIENCE) -> float:
        """Wait for a run of a job, and return its start."""
        return eventually(lambda: self.starts(job)[times - 1 :], within, message=job)[0]


@contextmanager
def place(contender: str, **conf: Any) -> Iterator[Place]:
    with Server(databases=LEDGER_DB + 1) as server, tempfile.TemporaryDirectory() as directory:
        found = Place(contender, Path(directory), server, **conf)
        try:
            yield found
        finally:
            for worker in found.workers:
                worker.close()


def lost(contender: str, args: argparse.Namespace) -> str:
    """Kill workers under load, and count the jobs that have not run when none is left."""
    timeout = {} if contender == OURS else {"options": {"visibility_timeout": 30}}
    with place(contender, **timeout) as here:
        for number in range(args.jobs):
            here.send("note", f"job-{number}")
        workers = [here.worker(concurrency=2), here.worker(concurrency=2)]
        for kill in range(1, args.kills + 1):
            ran = args.jobs * kill // (args.kills + 1)
            eventually(lambda ran=ran: len(here.ledger.runs()) >= ran, PATIENCE, every=0.1)
            workers.pop(0).kill9_all()
            workers.append(here.worker(concurrency=2))
        seen, since = 0, time.monotonic()
        # Two timeouts without any progress: a job that has not run by then never will.
        while len(runs := here.ledger.runs()) < args.jobs and time.monotonic() - since < 150:
            if len(runs) != seen:
                seen, since = len(runs), time.monotonic()
            time.sleep(1)
        twice = sum(times > 1 for times in runs.values())
        return (
            f"{args.jobs - len(runs)} of {args.jobs} lost at {args.kills} kills, {twice} ran twice"
        )


def recovery(contender: str, _: argparse.Namespace, **conf: Any) -> str:
    """Kill a worker, and wait until its last job runs on another one."""
    with place(contender, **conf) as here:
        victim = here.worker(concurrency=4, args=("--prefetch-multiplier=1",))
        for number in range(4):
            here.send("hold", f"held-{number}")
        for number in range(4):
            here.started(f"held-{number}")
        here.worker(concurrency=4)
        victim.kill9_all()
        killed = time.time()
        within = 60.0 if contender == STOCK and not conf else PATIENCE
        try:
            again = max(here.started(f"held-{n}", 2, within) for n in range(4))
        except AssertionError:
            back = sum(len(here.starts(f"held-{n}")) > 1 for n in range(4))
            return f"{back} of 4 jobs within {within:g} s"
        return f"{again - killed:.1f} s"


def long_job(contender: str, _: argparse.Namespace, *, seconds: int, **how: Any) -> str:
    """Run one job for longer than the timeout, with two workers that live."""
    cut = how.pop("cut", False)
    options = {} if contender == OURS else {"options": {"visibility_timeout": 10}}
    with place(contender, **options) as here:
        for _ in range(2):
            here.worker(concurrency=1, **how)
        here.send("hold", "long", float(seconds))
        begun = here.started("long")
        if cut:
            time.sleep(5)
            here.server.client().client_kill_filter(_type="normal", skipme=True)
        time.sleep(max(0.0, begun + seconds + 12 - time.time()))
        at = ", ".join(f"{start - begun:.0f}" for start in here.starts("long"))
        return f"{len(here.starts('long'))} starts, at {at} s"


def poison(contender: str, _: argparse.Namespace, **conf: Any) -> str:
    """Publish a job that kills its pool process, and count its runs for a minute."""
    with place(contender, **conf) as here:
        here.worker(concurrency=2)
        told = here.send("kill_child", "pill")
        time.sleep(60)
        return f"{len(here.starts('pill'))} runs in 60 s, its caller sees {told.state}"


def innocents(contender: str, _: argparse.Namespace) -> str:
    """Kill a worker three times while three jobs wait behind one that runs."""
    limit = {"options": {"visibility_timeout": 10, "delivery_limit": 3}}
    with place(contender, **({} if contender == OURS else limit)) as here:
        here.send("hold", "first", 600.0)
        names = [f"behind-{number}" for number in range(3)]
        for name in names:
            here.send("note", name)
        for kill in range(1, 4):
            worker = here.worker(concurrency=1)
            here.started("first", kill)
            worker.kill9_all()
        here.ledger.release("first")
        here.worker(concurrency=1)
        time.sleep(150 if contender == PLUS else 15)
        return f"{len({*names} & here.ledger.runs().keys())} of 3 ran"


def due_at_once(contender: str, _: argparse.Namespace) -> str:
    """Publish many jobs that are due at once, late enough to wait in Redis with each contender."""
    with place(contender) as here:
        here.worker(concurrency=2)
        note, due = here.app.tasks["shop.note"], datetime.now(timezone.utc) + timedelta(seconds=80)
        for number in range(DUE):
            note.apply_async((f"later-{number}",), eta=due)
        eventually(lambda: len(here.ledger.runs()) == DUE, PATIENCE, every=1)
        late = [starts[0] - due.timestamp() for starts in here.ledger.starts().values()]
        return f"{min(late):.1f} to {max(late):.1f} s late"


def beside_stock(contender: str, _: argparse.Namespace) -> str:
    """Publish with the stock transport, for a contender's worker."""
    with place(contender) as here:
        here.worker(concurrency=1)
        stock = build_app({**here.env, "SUPERFETCH": "0", "CONF": "{}"})
        try:
            stock.tasks["shop.note"].apply_async(("stock",), retry=False)
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
        here.started("stock", within=60)
        return "it ran"


TEN = {"options": {"visibility_timeout": 10}}
ALL = (OURS, STOCK, PLUS)
#: Name -> who is asked, and how.
CASES: dict[str, tuple[tuple[str, ...], Callable[..., str], dict[str, Any]]] = {
    "lost jobs": (ALL, lost, {}),
    "recovery": (ALL, recovery, {}),
    "recovery, visibility_timeout 10": ((STOCK, PLUS), recovery, TEN),
    "a job of 35 s, visibility_timeout 10": (ALL, long_job, {"seconds": 35}),
    "a job of 100 s on solo, the same": (ALL, long_job, {"seconds": 100, "pool": "solo"}),
    "a job of 100 s, a lost connection, the same": (ALL, long_job, {"seconds": 100, "cut": True}),
    "a killer of pool processes": (ALL, poison, {}),
    "the same, with late ack alone": ((STOCK,), poison, ALONE),
    "the same, task_retry_on_worker_lost": ((STOCK,), poison, ON_LOSS),
    "3,000 jobs due at once": (ALL, due_at_once, {}),
    "a stock producer beside it": ((OURS, PLUS), beside_stock, {}),
    "three jobs behind one whose worker is killed": (ALL, innocents, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=12_000, help="of the lost jobs")
    parser.add_argument("--kills", type=int, default=30)
    add_json(parser)
    args = parser.parse_args()
    skipped = without_plus()
    print(", ".join(f"{key} {value}" for key, value in machine().items()), *skipped.values())
    rows = []
    for case, (contenders, measured, how) in CASES.items():
        for contender in contenders if args.only in case else ():
            if contender not in skipped:
                result = measured(contender, args, **how)
                print(f"{case}: {contender}: {result}", flush=True)
                rows.append({"case": case, "contender": contender, "result": result})
    if args.json:
        write_rows(args.json, rows)


if __name__ == "__main__":
    main()
