"""The same storm on kombu's own transport: the picture without celery_superfetch."""

from __future__ import annotations

import time
from typing import Any

from . import app as demo
from .books import Balance, Kill
from .children import Child
from .story import JOBS, Story

#: Seconds without any progress after which the demo waits no longer.
IDLE_SECONDS = 10.0

#: How long the poison pill is watched.
PILL_SECONDS = 5.0

#: kombu's default.
VISIBILITY_TIMEOUT = 3600


class StockStory(Story):
    """What a killed worker held waits for the visibility timeout; a poison pill goes on."""

    def what_it_holds(self, victim: Child) -> str:
        return f"It runs {len(self.stage.running_in(victim))} jobs, and has prefetched others."

    def after_the_kill(self, victim: Child, kill: Kill) -> None:
        self.replace()

    def finish(self, kill: Kill) -> None:
        stage = self.stage
        progress = (0, time.monotonic())

        def standstill() -> bool:
            nonlocal progress
            if len(stage.runs) != progress[0]:
                progress = (len(stage.runs), time.monotonic())
            idle = time.monotonic() - progress[1] > IDLE_SECONDS
            return idle or stage.finished() >= set(stage.enqueued)

        stage.until("the workers have nothing left to do", 60.0, standstill)
        missing = JOBS - len(stage.finished())
        self.say(
            f"Nothing has moved for {IDLE_SECONDS:g} s, the workers are idle, and {missing} jobs "
            f"are missing. {stage.observer.stock_unacked()} jobs wait in `unacked` for the "
            f"visibility timeout ({VISIBILITY_TIMEOUT} s).",
            "bold red",
        )

    def poison(self) -> Any:
        stage = self.stage
        self.say("Enqueued a poison pill: a job that kills the process that runs it.")
        pill = demo.poison.delay()
        stage.enqueued.append("poison")
        over = time.monotonic() + PILL_SECONDS
        stage.until("it was watched", PILL_SECONDS + 60, lambda: time.monotonic() >= over)
        runs = len(stage.runs_of("poison"))
        self.say(f"It ran {runs} times in {PILL_SECONDS:g} s, and goes on for ever.", "bold red")
        return pill

    def stop(self) -> None:
        self.say("Stopping workers and beat ...")
        # In order, they would go on with the pill until the patience is over.
        self.stage.children.end_now()

    def balance(self, kill: Kill, pill: Any) -> bool:
        stage = self.stage
        work = [job for job in stage.enqueued if job != "poison"]
        balance = Balance.of(work, stage.runs, kill)
        lost = len(balance.lost())
        stage.screen.close()
        stage.screen.table(
            "Summary (stock kombu, for comparison)",
            [
                ("enqueued", len(stage.enqueued), f"{len(work)} to work and 1 poison pill"),
                ("finished", len(balance.finished), ""),
                ("recovered", 0, "within this demo's time"),
                ("killed", 0, "the pill still runs, again and again"),
                ("lost", lost, f"until the visibility timeout, {VISIBILITY_TIMEOUT} s"),
            ],
        )
        return not lost
