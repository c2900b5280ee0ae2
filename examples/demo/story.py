"""The story: a storm of jobs, a SIGKILL, the way back, a poison pill, and the balance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import redis

from celery_superfetch.app.broker import database_of
from celery_superfetch.store.dead_set import DeadSetStore
from celery_superfetch.store.in_flight_jobs import InFlightJobs
from celery_superfetch.store.owner_registry import OwnerRegistry

from . import app as demo
from .books import Balance, Kill, Run, runs_of
from .processes import Child, DemoError

T = TypeVar("T")

JOBS = 64
CONCURRENCY = 4

#: The worker is killed while all it runs has at least this long to go: so no job is between
#: its last line and its ack, and each must finish exactly once.
SAFE_SECONDS = 0.3

#: The default `strike_limit`.
STRIKES = 3

#: Seconds. Generous: a busy machine may be slow, but it must not make the demo lie.
PATIENCE = 60.0

#: Seconds between two looks at ledger and Redis, and between two lines on how far it has come.
LOOK, LINE = 0.05, 2.0

ROOT = str(Path(__file__).resolve().parents[2])


class Story:
    """The demo with celery_superfetch; each step says what it does before it does it."""

    def __init__(self, client: redis.Redis, folder: Path, say: Callable[..., None]) -> None:
        self.client, self.folder, self.say = client, folder, say
        #: When and what, in the words of a picture.
        self.noted: list[tuple[float, str]] = []
        self.kill: Kill | None = None
        #: Jobs that the killed worker had, running or prefetched.
        self.had: set[str] = set()
        database = database_of(demo.app, client)
        self.keys = database.keys
        self.registry = OwnerRegistry(database)
        self.in_flight_jobs = InFlightJobs(database)
        self.dead = DeadSetStore(database)
        path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH", ""))))
        self.env = {**os.environ, "PYTHONPATH": path}
        self.children: list[Child] = []
        self.workers: list[Child] = []
        self.victim: Child | None = None
        self.owner = ""
        self.recovered = 0
        self.runs: list[Run] = []
        self.problems: list[str] = []
        self.jobs = [f"work-{number}" for number in range(1, JOBS + 1)]

    def tell(self) -> bool:
        """From start to end; False when the promise was broken."""
        self.start_fleet()
        for number in range(1, JOBS + 1):
            demo.work.apply_async((number, 1.0 + number % 5 / 4), task_id=f"work-{number}")
        self.say(f"Enqueued {JOBS} jobs of 1 to 2 seconds on queue {demo.QUEUE!r}.")
        self.kill = kill = self.kill_a_worker()
        self.see_its_jobs_come_back(kill)
        self.wait_for_all()
        self.say("Enqueued a poison pill: a job that kills the process that runs it.")
        self.note("published: a job that kills its process")
        pill = demo.poison.delay()
        self.see_it_killed(pill)
        self.say("Stopping workers and beat ...")
        self.stop()
        return self.balance(Balance(self.jobs, self.runs, kill), pill)

    def start_fleet(self) -> None:
        """Start two workers and beat, and wait until they are ready."""
        self.say(f"Starting 2 workers (prefork, {CONCURRENCY} processes each) and beat ...")
        workers = [self.start_worker("one"), self.start_worker("two")]
        schedule = str(self.folder / "schedule")
        beat = self.start("beat", "beat", "-s", schedule, "--pidfile=", "-l", "INFO")
        for worker in workers:
            self.until(f"{worker.title} is ready", lambda w=worker: w.logged(" ready."))
        self.until("beat has started", lambda: beat.logged("beat: Starting"))
        self.say(f"Ready: {', '.join(f'{w.title} (pid {w.pid})' for w in workers)}, beat.")

    def note(self, text: str) -> None:
        self.noted.append((time.time(), text))

    def recording(self) -> dict[str, Any]:
        """All that a picture shows; times are seconds since the kill."""
        at = self.kill.at if self.kill else 0.0
        runs = [(r.job, r.started - at, r.finished and r.finished - at) for r in self.runs]
        noted = [(when - at, text) for when, text in self.noted]
        return {"jobs": self.jobs, "had": sorted(self.had), "runs": runs, "noted": noted}

    # -- acting and waiting

    def start(self, title: str, *words: str) -> Child:
        argv = [sys.executable, "-m", "celery", "-A", "examples.demo.app", *words]
        self.children.append(Child(title, argv, self.folder, self.env))
        return self.children[-1]

    def start_worker(self, name: str) -> Child:
        """`celery worker`, less the greetings between workers that take a second at start."""
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO"]
        words = ["worker", "-c", str(CONCURRENCY), "-n", f"{name}@%h", *quiet]
        self.workers.append(self.start(f"worker {name}", *words))
        return self.workers[-1]

    def end(self) -> None:
        """Leave no process behind, whatever has happened."""
        for child in self.children:
            child.end()

    def until(self, what: str, look: Callable[[], T], within: float = PATIENCE) -> T:
        """Return the first truthy value of `look`, and say meanwhile how far the jobs have come.

        Raises:
            DemoError: not within so many seconds, or a process has ended that should live.
        """
        deadline, next_line = time.monotonic() + within, time.monotonic() + LINE
        while True:
            for child in self.children:
                if child is not self.victim:
                    child.check()
            try:
                ledger: Any = self.client.lrange(demo.LEDGER, 0, -1)
                self.runs = runs_of(ledger)
                if value := look():
                    return value
                waiting = self.client.llen(self.keys.queue(demo.QUEUE))
            except redis.RedisError as exc:
                raise DemoError(f"the server cannot be used any more: {exc}") from exc
            now = time.monotonic()
            if now >= deadline:
                logs = "\n".join(f"{w.title}, end of log:\n{w.tail()}" for w in self.workers)
                raise DemoError(f"waited {within:g} s in vain until {what}.\n{logs}")
            if now >= next_line:
                next_line = now + LINE
                self.say(f"    {self.progress()}, {waiting} waiting on the queue")
            time.sleep(LOOK)

    def progress(self) -> str:
        return f"{len(self.finished())} of {JOBS} jobs finished"

    def finished(self) -> set[str]:
        return {run.job for run in self.runs if run.finished}

    def running_in(self, worker: Child) -> list[Run]:
        """Runs in a worker that have not finished; after its death: that were cut short."""
        return [run for run in self.runs if run.worker == worker.pid and not run.finished]

    def pills(self) -> list[Run]:
        return [run for run in self.runs if run.job == "poison"]

    # -- the kill, and the way back

    def kill_a_worker(self) -> Kill:
        """SIGKILL the first worker's MainProcess while all its pool is busy."""
        victim = self.workers[0]

        def busy() -> bool:
            safe = time.time() + SAFE_SECONDS
            running = [r for r in self.running_in(victim) if r.started + r.seconds > safe]
            return len(self.finished()) >= JOBS // 2 and len(running) == CONCURRENCY

        self.until(f"{victim.title} is busy", busy)
        self.say(f"kill -9 {victim.pid}: {victim.title}. {self.what_it_holds(victim)}", "bold red")
        self.victim = victim
        kill = Kill(victim.pid, victim.sigkill(), CONCURRENCY)
        self.note(f"kill -9 of a worker that runs {CONCURRENCY} jobs")
        return kill

    def what_it_holds(self, victim: Child) -> str:
        owners = [o for o in self.registry.owners() if o.split("|")[1] == str(victim.pid)]
        if not owners:
            raise DemoError(f"{victim.title} is not in the registry of owners")
        [self.owner] = owners
        held, running = self.held(), len(self.running_in(victim))
        kept: Any = self.client.hvals(self.keys.private(self.owner))
        payloads = [json.loads(field) for field in kept if field.startswith(b"{")]
        self.had = {payload["headers"]["id"] for payload in payloads}
        return (
            f"Its private list holds {held} jobs: {running} running, {held - running} prefetched."
        )

    def held(self) -> int:
        return self.in_flight_jobs.counts([self.owner])[self.owner].in_flight

    def see_its_jobs_come_back(self, kill: Kill) -> None:
        def cause() -> bytes | None:
            reason: Any = self.client.hget(self.keys.owner_record(self.owner), "reason")
            return reason

        def since() -> str:
            return f"{time.time() - kill.at:.1f} s after the kill"

        why = self.until("the worker is declared dead", cause)
        self.say(f"Worker {self.owner} was declared dead {since()}: {why.decode()}.")
        self.note(f"worker declared dead: {why.decode()}")
        self.until("its jobs are back", lambda: not self.held())
        counted: Any = self.client.hget(self.keys.stats, "recovered")
        self.recovered = int(counted or 0)
        self.say(f"{self.recovered} jobs were back at the front of the queue {since()}.", "green")
        self.note(f"its {self.recovered} jobs are back at the front of the queue")
        self.replace()
        cut = {run.job for run in self.runs if run.worker == kill.worker and not run.finished}
        again = "a job that was cut short runs again"
        self.until(again, lambda: any(r.job in cut and r.started > kill.at for r in self.runs))
        self.say(f"The first of the {len(cut)} jobs that were cut short runs again, {since()}.")

    def replace(self) -> None:
        worker = self.start_worker("three")
        self.say(f"Starting {worker.title} (pid {worker.pid}) in its place, as a supervisor would.")

    def wait_for_all(self) -> None:
        self.until("all jobs have finished", lambda: self.finished() >= {*self.jobs})
        self.say(f"All {JOBS} jobs have finished.", "green")
        self.note(f"all {JOBS} jobs have finished")
        self.until("the new worker is ready", lambda: self.workers[-1].logged(" ready."))

    # -- the poison pill, and the balance

    def see_it_killed(self, pill: Any) -> None:
        for number in range(1, STRIKES + 1):
            self.until(f"it runs for the {number}. time", lambda n=number: len(self.pills()) >= n)
            process = self.pills()[number - 1].pool_process
            self.say(f"Run {number} of the pill: pool process {process} is gone.", "red")
        self.until("it is in the dead set", lambda: len(self.dead))
        self.say("It had its strikes. `celery -A examples.demo.app superfetch dead list`:", "green")
        argv = [sys.executable, "-m", "celery", "-A", "examples.demo.app"]
        command = [*argv, "superfetch", "dead", "list"]
        if subprocess.call(command, cwd=self.folder, env=self.env):
            self.problems.append("`superfetch dead list` failed")
        self.until("its caller is told", pill.ready)
        self.say(f"Its caller's AsyncResult: {pill.state}, {type(pill.result).__name__}:")
        self.note(f"{STRIKES} runs, then the dead set; its caller gets {pill.state}")
        self.say(f"    {pill.result}")

    def stop(self) -> None:
        for child in self.children:
            child.popen.terminate()
        for child in self.children:
            child.end(10.0)
        if owners := self.registry.owners():
            self.problems.append(f"owners are left behind: {', '.join(owners)}")

    def balance(self, balance: Balance, pill: Any) -> bool:
        dead, pills = [job.task_id for job in self.dead], len(self.pills())
        problems = [*self.problems, *balance.problems()]
        if (dead, pill.state, pills) != ([pill.id], "FAILURE", STRIKES):
            problems.append(f"the pill ran {pills} times, is {pill.state}, and dead are {dead}")
        twice = len(balance.finished_twice)
        self.table(
            ("enqueued", JOBS + 1, f"{JOBS} to work and 1 poison pill"),
            ("finished", len(balance.finished), f"{twice or 'none'} of them more than once"),
            ("recovered", self.recovered, "from the killed worker, running or prefetched"),
            ("run twice", len(balance.started_twice), "were running when it was killed"),
            ("killed", len(dead), f"the pill, after {pills} runs; whole in the dead set"),
            ("lost", len(balance.lost) + (pill.id not in dead), ""),
        )
        for problem in problems:
            self.say(f"BROKEN: {problem}", "bold red")
        return not problems

    def table(self, *rows: tuple[str, int, str]) -> None:
        for what, number, note in rows:
            self.say(f"| {what:9} | {number:3} | {note}", "bold", stamp=False)


class StockStory(Story):
    """The same storm on kombu's own transport: what a killed worker held waits for the visibility
    timeout, and a poison pill goes on."""

    #: Seconds: kombu's default; without progress until the demo waits no longer; with the pill.
    VISIBILITY_TIMEOUT, IDLE, PILL = 3600, 10.0, 10.0

    def what_it_holds(self, victim: Child) -> str:
        return f"It runs {len(self.running_in(victim))} jobs, and has prefetched others."

    def see_its_jobs_come_back(self, kill: Kill) -> None:
        self.replace()

    def wait_for_all(self) -> None:
        moved = (0, time.monotonic())

        def standstill() -> bool:
            nonlocal moved
            if len(self.runs) != moved[0]:
                moved = (len(self.runs), time.monotonic())
            idle = time.monotonic() - moved[1] > self.IDLE
            return idle or self.finished() >= {*self.jobs}

        self.until("the workers have nothing left to do", standstill)
        self.had = {*self.jobs} - self.finished()
        self.note(f"{len(self.had)} jobs of the killed worker wait for {self.VISIBILITY_TIMEOUT} s")
        self.say(
            f"Nothing has moved for {self.IDLE:g} s, the workers are idle, and "
            f"{JOBS - len(self.finished())} jobs are missing. "
            f"{self.client.hlen(f'{demo.PREFIX}unacked')} jobs wait in `unacked` for the "
            f"visibility timeout ({self.VISIBILITY_TIMEOUT} s).",
            "bold red",
        )

    def see_it_killed(self, pill: Any) -> None:
        over = time.monotonic() + self.PILL
        self.until("it was watched", lambda: time.monotonic() >= over)
        runs = len(self.pills())
        self.say(f"It ran {runs} times in {self.PILL:g} s, and runs again without end.", "bold red")
        self.note(f"{runs} runs in {self.PILL:g} s, and it runs again without end")

    def stop(self) -> None:  # in order, they would go on with the pill until the patience is over
        self.end()

    def balance(self, balance: Balance, pill: Any) -> bool:
        self.table(
            ("enqueued", JOBS + 1, f"{JOBS} to work and 1 poison pill"),
            ("finished", len(balance.finished), "on stock kombu, for comparison"),
            ("recovered", 0, "within this demo's time"),
            ("killed", 0, "the pill still runs, again and again"),
            ("lost", len(balance.lost), f"for the visibility timeout, {self.VISIBILITY_TIMEOUT} s"),
        )
        return not balance.lost


def check_place(client: redis.Redis, clean_first: bool) -> None:
    """Make sure that nobody else's demo is in this database.

    Raises:
        DemoError: the server cannot be used, or something of a demo is there.
    """
    try:
        if clean_first:
            clean(client)
        left = [*client.scan_iter(match=f"{demo.PREFIX}*", count=1000)]
        waiting = client.llen(f"{demo.PREFIX}{demo.QUEUE}")
    except redis.RedisError as exc:
        raise DemoError(f"the server cannot be used: {exc}") from exc
    if left:
        raise DemoError(
            f"another demo is, or was, in this database: its queue holds {waiting} jobs. Nothing "
            "was touched. If that is left from a demo that was killed, add `--clean`: it deletes "
            f"the keys {demo.PREFIX}* first, and no others."
        )


def clean(client: redis.Redis) -> None:
    """Delete every key of the demo."""
    for key in client.scan_iter(match=f"{demo.PREFIX}*", count=1000):
        client.unlink(key)
