"""The story: a storm of jobs, a SIGKILL, the way back, a poison pill, and the balance."""

from __future__ import annotations

import time
from typing import Any

from . import app as demo
from .books import Balance, Kill
from .children import Child, DemoError
from .stage import Stage

JOBS = 64
CONCURRENCY = 4

#: The worker is killed while all it runs has at least this long to go: so no job is between
#: its last line and its ack, and each must finish exactly once.
SAFE_SECONDS = 0.3

#: The default `strike_limit`.
STRIKES = 3

#: Generous: a busy machine may be slow, but it must not make the demo lie.
PATIENCE = 60.0


class Story:
    """The demo with celery_superfetch; each step says what it does before it does it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.say = stage.screen.say
        self.owner = ""
        self.recovered = 0
        self.problems: list[str] = []

    def tell(self) -> bool:
        """From start to end; False when the promise was broken."""
        self.start()
        self.enqueue()
        victim, kill = self.kill_a_worker()
        self.after_the_kill(victim, kill)
        self.finish(kill)
        pill = self.poison()
        self.stop()
        return self.balance(kill, pill)

    # -- the storm

    def start(self) -> None:
        self.say(f"Starting 2 workers (prefork, {CONCURRENCY} processes each) and beat ...")
        stage = self.stage
        self.start_worker("one")
        self.start_worker("two")
        beat = stage.children.beat()
        for worker in stage.workers:
            self.wait_ready(worker)
        stage.until("beat has started", PATIENCE, lambda: beat.logged("beat: Starting"))
        self.say(f"Ready: {', '.join(f'{w.title} (pid {w.pid})' for w in stage.workers)}, beat.")

    def start_worker(self, name: str) -> Child:
        worker = self.stage.children.worker(name, CONCURRENCY)
        self.stage.workers.append(worker)
        return worker

    def wait_ready(self, worker: Child) -> None:
        self.stage.until(f"{worker.title} is ready", PATIENCE, lambda: worker.logged(" ready."))

    def enqueue(self) -> None:
        for number in range(1, JOBS + 1):
            self.stage.enqueued.append(f"work-{number}")
            demo.work.apply_async((number, 1.0 + number % 5 / 4))
        self.say(f"Enqueued {JOBS} jobs of 1 to 2 seconds on queue {demo.QUEUE!r}.")

    def kill_a_worker(self) -> tuple[Child, Kill]:
        """SIGKILL the first worker's MainProcess while all its pool is busy."""
        stage, victim = self.stage, self.stage.workers[0]

        def busy() -> bool:
            running, now = stage.running_in(victim), time.time()
            return (
                len(stage.finished()) >= JOBS // 2
                and len(running) == CONCURRENCY
                and all(run.left(now) > SAFE_SECONDS for run in running)
            )

        stage.until(f"{victim.title} is busy", PATIENCE, busy)
        self.say(f"kill -9 {victim.pid}: {victim.title}. {self.what_it_holds(victim)}", "bold red")
        stage.killed.add(victim)
        return victim, Kill(victim.pid, victim.sigkill(), CONCURRENCY)

    def what_it_holds(self, victim: Child) -> str:
        owner = self.stage.observer.owner_of(victim.pid)
        if owner is None:
            raise DemoError(f"{victim.title} is not in the registry of owners")
        self.owner = owner
        held = self.stage.observer.in_flight(owner)[owner]
        running = len(self.stage.running_in(victim))
        return (
            f"Its private lists hold {held} jobs: {running} running, {held - running} prefetched."
        )

    # -- the way back

    def after_the_kill(self, victim: Child, kill: Kill) -> None:
        stage, observer = self.stage, self.stage.observer

        def since() -> str:
            return f"{time.time() - kill.at:.1f} s after the kill"

        cause = stage.until(
            "the owner is declared dead", PATIENCE, lambda: observer.cause_of_death(self.owner)
        )
        self.say(f"Owner {self.owner} was declared dead {since()}: {cause}.")
        stage.until(
            "its jobs are back", PATIENCE, lambda: not observer.in_flight(self.owner)[self.owner]
        )
        self.recovered = observer.counter("recovered")
        self.say(f"{self.recovered} jobs were back at the front of the queue {since()}.", "green")
        self.replace()
        cut = {run.job for run in stage.running_in(victim)}

        def again() -> bool:
            return any(run.job in cut and run.started > kill.at for run in stage.runs)

        stage.until("a job that was cut short runs again", PATIENCE, again)
        self.say(f"The first of the {len(cut)} jobs that were cut short runs again, {since()}.")

    def replace(self) -> None:
        worker = self.start_worker("three")
        self.say(f"Starting {worker.title} (pid {worker.pid}) in its place, as a supervisor would.")

    def finish(self, kill: Kill) -> None:
        stage = self.stage
        stage.until(
            "all jobs have finished", PATIENCE, lambda: stage.finished() >= set(stage.enqueued)
        )
        self.say(f"All {JOBS} jobs have finished.", "green")

    # -- the poison pill

    def poison(self) -> Any:
        """A job that kills whatever process runs it; its result."""
        stage = self.stage
        for worker in stage.workers:
            if worker not in stage.killed:
                self.wait_ready(worker)
        self.say("Enqueued a poison pill: a job that kills the process that runs it.")
        pill = demo.poison.delay()
        stage.enqueued.append("poison")
        for number in range(1, STRIKES + 1):
            stage.until(
                f"it runs for the {number}. time",
                PATIENCE,
                lambda number=number: len(stage.runs_of("poison")) >= number,
            )
            process = stage.runs_of("poison")[number - 1].pool_process
            self.say(f"Run {number} of the pill: pool process {process} is gone.", "red")
        stage.until("it is in the dead set", PATIENCE, stage.observer.dead_jobs)
        self.say("It had its strikes. `celery -A examples.demo.app superfetch dead list`:", "green")
        try:
            with stage.screen.lend() as terminal:
                printed = stage.children.run("superfetch", "dead", "list", terminal=terminal)
            stage.screen.block(printed)
        except DemoError as exc:
            self.problems.append(str(exc))
        stage.until("its caller is told", PATIENCE, pill.ready)
        self.say(f"Its caller's AsyncResult: {pill.state}, {type(pill.result).__name__}:")
        stage.screen.block(str(pill.result))
        return pill

    # -- the balance

    def stop(self) -> None:
        self.say("Stopping workers and beat ...")
        self.stage.children.end_in_order()
        if owners := self.stage.observer.registry.owners():
            self.problems.append(f"owners are left behind: {', '.join(owners)}")

    def balance(self, kill: Kill, pill: Any) -> bool:
        stage = self.stage
        work = [job for job in stage.enqueued if job != "poison"]
        balance = Balance.of(work, stage.runs, kill)
        dead = [job.task_id for job in stage.observer.dead_jobs()]
        problems = [*self.problems, *balance.problems(kill)]
        if dead != [pill.id]:
            problems.append(f"the dead set should hold the pill alone, it holds {dead}")
        if pill.state != "FAILURE":
            problems.append(f"the pill's caller was told {pill.state}")
        if (pills := len(stage.runs_of("poison"))) != STRIKES:
            problems.append(f"the pill ran {pills} times")
        lost = len(balance.lost()) + int(pill.id not in dead)
        rows = [
            ("enqueued", len(stage.enqueued), f"{len(work)} to work and 1 poison pill"),
            ("finished", len(balance.finished), "each exactly once"),
            ("recovered", self.recovered, "from the killed worker, running or prefetched"),
            ("run twice", len(balance.started_twice), "were running when it was killed"),
            ("killed", len(dead), f"the pill, after {pills} runs; whole in the dead set"),
            ("lost", lost, ""),
        ]
        if twice := len(balance.finished_twice):
            rows[1] = ("finished", len(balance.finished), f"{twice} of them more than once")
        stage.screen.close()
        stage.screen.table("Summary", rows)
        for problem in problems:
            self.say(f"BROKEN: {problem}", "bold red")
        return not problems
