"""Throughput and cost per job of a Celery worker on each pool.

    python benchmarks/worker.py [--rounds 3] [--only solo] [--jobs 2000] [--prefetch 4] [--json]

    python benchmarks/worker.py --jobs 10000 --prefetch 1 4 16

celery_superfetch is compared with stock and celery-redis-plus. A worker of each drains jobs that do
nothing, which were queued before it started, on a server of its own. All use late ack, send no
events and start without mingle, for which celery-redis-plus would wait. ``--prefetch`` is Celery's
multiplier: with two processes, 4 means 8 jobs. RQ's `SimpleWorker` is there for reference: it forks
no pool and fetches one job at a time, so it is compared with solo.

Ten times a second the server is asked how many jobs are queued or in flight. A figure covers the
time between the first answer of fewer than all jobs and the last of more than none, so that the
start of the worker does not count. A command is what a worker sends, and a script is one. A send is
one command or one pipeline: a round trip, unless it blocks. The worker's processes count both
themselves, including heartbeats, which are a few in thousands. A call is what the server executes,
also within scripts, plus one for the producer's LPUSH.

The aims: prefork 1.25 times stock, threads 1.6, solo 1.8, and faster than celery-redis-plus on each
pool; 2.5 commands per job at prefetch 4; Redis CPU 0.6 times stock.

Distorted by: other processes on the machine (rates, and to a lesser extent CPU; not commands), and
by the worker and the server sharing cores. Takes: four minutes for five rounds of 3,000 jobs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psutil
from compare import (
    BEFORE,
    OURS,
    PLUS,
    STOCK,
    TRANSPORTS,
    Table,
    arguments,
    begin,
    finish_all,
    measure_all,
    package_before,
    skipped_here,
)
from noop import NAME, Counts, build

from support.process import Process
from support.servers.server import Server
from support.workers.worker import TESTS, Worker, process_env

RQ = "RQ SimpleWorker"
#: Pool -> its size. A greenlet a job is what gevent is for; 100 would hold all that is prefetched.
POOLS = {"prefork": 2, "threads": 8, "solo": 1, "gevent": 8}
#: Seconds between two looks at the server.
LOOK = 0.1
#: Commands of the looks themselves.
LOOKS = {f"cmdstat_{name}" for name in ("info", "llen", "hlen", "hkeys", "keys", "type", "zcard")}
#: Seconds without any job settled after which something is wrong.
PATIENCE = 30
#: RQ runs a tenth as many jobs per second, and gets a fifth of them.
RQ_PART = 5
#: Jobs of one pipeline.
BATCH = 500

FLAGS = ("--without-heartbeat",)


class Look(NamedTuple):
    """Jobs that were left at some moment, and what had been spent."""

    at: float
    left: int
    #: Seconds of CPU.
    server: float
    worker: float
    commands: int
    sends: int
    #: Of these, what Celery's main process sent.
    main_commands: int
    main_sends: int
    #: Calls that the server has executed, without those of the looks.
    calls: int

    def per_job(self, since: Look) -> tuple[float, ...]:
        """Return a value for each of ``tables``."""
        jobs = since.left - self.left
        return (
            jobs / (self.at - since.at),
            (self.commands - since.commands) / jobs,
            (self.sends - since.sends) / jobs,
            (self.main_commands - since.main_commands) / jobs,
            (self.main_sends - since.main_sends) / jobs,
            (self.server - since.server) / jobs * 1e6,
            (self.worker - since.worker) / jobs * 1e6,
            (self.calls - since.calls) / jobs + 1,
        )


def tables(skipped: dict[str, str], jobs: str = "no-op jobs") -> list[Table]:
    title = f"{jobs}, late ack"
    cheap = (
        ("commands", "sent per job"),
        ("sends", "per job"),
        ("commands of the main process", "sent per job"),
        ("sends of the main process", "per job"),
        ("the server's CPU", "us per job"),
        ("the worker's CPU", "us per job"),
        ("the server's calls", "executed per job"),
    )
    first = Table(title, "jobs/s", skipped=skipped)
    return [first, *(Table(f"{title}: {name}", unit, more=False) for name, unit in cheap)]


def fill(
    client: Any, contender: str, url: str, jobs: int, task: str = "bench.noop", prefix: str = ""
) -> None:
    """Queue copies of a job that the contender published, each with ids of its own."""
    if contender == RQ:
        fill_rq(client, jobs)
        return
    app = build(contender, url, prefix=prefix)
    task_id = app.tasks[task].delay().id
    app.close()
    copies(client, contender, task_id, jobs, prefix)


def copies(client: Any, contender: str, task_id: str, jobs: int, prefix: str = "") -> None:
    """Put so many copies in the place of the one job that is queued."""
    copy = _copy_hash if contender == PLUS else _copy_item
    with client.pipeline(transaction=False) as pipe:
        for number, _ in enumerate(copy(client, pipe, task_id, jobs, prefix)):
            if number % BATCH == 0:
                pipe.execute()
        pipe.execute()


def _copy_item(client: Any, pipe: Any, task_id: str, jobs: int, prefix: str) -> Iterator[None]:
    """Copy a job as kombu stores it: in a list of payloads."""
    template = client.rpop(prefix + NAME)
    tag = template.split(b'"delivery_tag": "')[1].split(b'"')[0]
    for _ in range(jobs):
        payload = template.replace(task_id.encode(), str(uuid4()).encode())
        pipe.lpush(prefix + NAME, payload.replace(tag, str(uuid4()).encode()))
        yield


def _copy_hash(client: Any, pipe: Any, task_id: str, jobs: int, _: str) -> Iterator[None]:
    """Copy a job as celery-redis-plus stores it: a hash each, and two sorted sets of tags."""
    queue, index = f"queue:{NAME}", f"messages_index:{NAME}"
    ((tag, score),) = client.zrange(queue, 0, -1, withscores=True)
    due = client.zscore(index, tag)
    template = client.hgetall(b"message:" + tag)
    client.delete(b"message:" + tag, queue, index)
    for number in range(jobs):
        new = str(uuid4()).encode()
        payload = template[b"payload"].replace(task_id.encode(), str(uuid4()).encode())
        payload = payload.replace(tag, new)
        pipe.hset(b"message:" + new, mapping={**template, b"payload": payload})
        pipe.zadd(queue, {new: score + number})
        pipe.zadd(index, {new: due})
        yield


def fill_rq(client: Any, jobs: int) -> None:
    from rq import Queue

    queue = Queue(NAME, connection=client)
    data = Queue.prepare_data("benchmarks.noop.noop", result_ttl=0)
    for at in range(0, jobs, BATCH):
        queue.enqueue_many(
            [data._replace(job_id=str(uuid4())) for _ in range(min(BATCH, jobs - at))]
        )


def left(client: Any, contender: str, prefix: str = "") -> int:
    """Return the jobs queued or in flight, counted in the order in which a job moves."""
    if contender == PLUS:
        return int(client.zcard(f"messages_index:{NAME}"))
    with client.pipeline(transaction=False) as pipe:
        if contender == STOCK:
            pipe.llen(NAME).hlen("unacked")
        elif contender in (OURS, BEFORE):
            pipe.llen(prefix + NAME)
            for name in client.keys(f"{prefix}superfetch:private:*"):
                (pipe.hkeys if client.type(name) == b"hash" else pipe.llen)(name)
        else:
            pipe.llen(f"rq:queue:{NAME}").llen(f"rq:queue:{NAME}:intermediate")
            pipe.zcard(f"rq:wip:{NAME}")
        sizes = pipe.execute()
    # A private list has the claims, and notes beside them.
    return sum(
        size if isinstance(size, int) else sum(not key.startswith((b"w", b"s")) for key in size)
        for size in sizes
    )


class Drain:
    """Worker that empties a queue."""

    #: The app's ``global_keyprefix``.
    prefix = ""
    #: Those that the worker serves; none named: the app's own.
    queues: Sequence[str] = ()
    #: Further variables of the worker's environment.
    env: Mapping[str, str] = {}

    def __init__(self, contender: str, pool: str, prefetch: int, jobs: int) -> None:
        self.contender, self.pool, self.prefetch, self.jobs = contender, pool, prefetch, jobs

    def run(self) -> tuple[float, ...]:
        """Drain the queue; return the cost of a job."""
        with self.serving() as (server, url), tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            self.client = server.client()
            self.fill(server.url())
            self.counts = Counts(directory / "counts")
            self.worker = self.start(url, directory)
            try:
                first, last = self.watch()
            finally:
                self.worker.close()
            return last.per_job(first)

    def fill(self, url: str) -> None:
        fill(self.client, self.contender, url, self.jobs, prefix=self.prefix)

    @contextmanager
    def serving(self) -> Iterator[tuple[Server, str]]:
        """Start a server; yield it with the URL for the worker."""
        with Server() as server:
            yield server, server.url()

    def start(self, url: str, directory: Path) -> Process:
        env = {
            "CONTENDER": self.contender,
            "BROKER_URL": url,
            "PREFETCH": str(self.prefetch),
            "PREFIX": self.prefix,
            "COUNTS": str(directory / "counts"),
            **self.env,
        }
        if self.contender == BEFORE:
            package_before(directory)
            env["PYTHONPATH"] = os.pathsep.join(map(str, (directory, TESTS, TESTS.parent)))
        if self.contender == RQ:
            env.pop("CONTENDER")
            code = f"from benchmarks.noop import run_rq; run_rq({url!r})"
            log, argv = directory / "rq.log", [sys.executable, "-c", code]
            return Process(argv, log=log, env=process_env(env), cwd=directory, title="rq")
        return Worker(
            env,
            app="benchmarks.noop",
            pool=self.pool,
            concurrency=POOLS[self.pool],
            queues=self.queues,
            args=FLAGS,
            loglevel="ERROR",
            directory=directory,
        )

    def watch(self) -> tuple[Look, Look]:
        """Return the first look after some jobs were acked, and the last before all were."""
        first = last = None
        moved, least = time.monotonic(), self.jobs
        while not first or least:
            time.sleep(LOOK)
            remaining = left(self.client, self.contender, self.prefix)
            if remaining < least:
                moved, least = time.monotonic(), remaining
            elif time.monotonic() > moved + PATIENCE or not self.worker.alive():
                raise RuntimeError(
                    f"{self.contender}, {self.pool}: {remaining} of {self.jobs} jobs are left\n"
                    f"{self.worker.tail()}"
                )
            if remaining < self.jobs and (remaining or not last):
                last = self.look(remaining)
                first = first or last
        if first is None or last is None or first.left - last.left < self.jobs / 2:
            raise RuntimeError(f"{self.jobs} jobs are too few to be measured: see --jobs")
        return first, last

    def look(self, remaining: int) -> Look:
        at = time.monotonic()
        cpu = self.client.info("cpu")
        stats = self.client.info("commandstats").items()
        calls = sum(row["calls"] for name, row in stats if name not in LOOKS)
        spent = self.counts.read()
        main = spent.get(self.worker.pid, (0, 0))
        return Look(
            at,
            remaining,
            cpu["used_cpu_user"] + cpu["used_cpu_sys"],
            self.worker_cpu(),
            sum(commands for commands, _ in spent.values()),
            sum(sends for _, sends in spent.values()),
            *main,
            calls,
        )

    def worker_cpu(self) -> float:
        total = 0.0
        for process in (psutil.Process(self.worker.pid), *self.worker.children()):
            with suppress(psutil.NoSuchProcess):
                total += sum(process.cpu_times()[:2])
        return total


def cases(prefetches: Sequence[int]) -> Iterator[tuple[str, int]]:
    for prefetch in prefetches:
        for pool in POOLS:
            yield pool, prefetch


def contenders(
    pool: str, prefetch: int, jobs: int, names: Sequence[str]
) -> dict[str, Callable[[], tuple[float, ...]]]:
    if pool == "solo" and prefetch == 4 and installed("rq"):
        names = [*names, RQ]
    return {
        name: Drain(name, pool, prefetch, jobs // RQ_PART if name == RQ else jobs).run
        for name in names
    }


def installed(module: str) -> bool:
    with suppress(ImportError):
        __import__(module)
        return True
    return False


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--jobs", type=int, default=2000, help="of each run")
    parser.add_argument("--prefetch", type=int, nargs="+", default=[4], help="multipliers")
    args = parser.parse_args(argv)
    os.environ.pop("CONTENDER", None)
    skipped = skipped_here()
    found = tables(skipped)
    begin(found[0])
    names = [name for name in TRANSPORTS if name not in skipped]
    for pool, prefetch in cases(args.prefetch):
        case = f"{pool} -c {POOLS[pool]}, prefetch {prefetch}"
        if args.only in case and (pool != "gevent" or installed("gevent")):
            measure_all(found, case, args.rounds, contenders(pool, prefetch, args.jobs, names))
    finish_all(args, found)


if __name__ == "__main__":
    main()
