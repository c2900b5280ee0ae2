"""What the state machine chooses from: jobs, and the workers and claims that a rule is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis.stateful import precondition

from celery_superfetch.model.job import Claimed
from celery_superfetch.store.private_lists import LARGE_BYTES
from model.cast import Worker
from support.workers.bench import payload

QUEUES = ("mail", "press")
INNOCENT = {payload(f"note-{n}", QUEUES[n % 2]): QUEUES[n % 2] for n in range(2)}
#: A claim does not send it again if a blocking read has brought it.
INNOCENT[payload("note-2", "mail", filler="x" * LARGE_BYTES)] = "mail"
POISON = {payload(f"pill-{n}", QUEUES[n % 2]): QUEUES[n % 2] for n in range(2)}
#: It kills its worker, too, but its task says that it is never killed for that.
SPARED = {payload("spared", "mail", task="shop.spared"): "mail"}
JOBS = INNOCENT | POISON | SPARED
KILLERS = POISON | SPARED
NAMES = {raw: name for name, raw in zip(("a", "b", "c", "P", "Q", "S"), JOBS, strict=True)}

Choice = Callable[[Worker], bool]
Jobs = Callable[[Worker], list[Claimed]]


def anybody(worker: Worker) -> bool:
    return True


def looking_alive(worker: Worker) -> bool:
    return not worker.looks_dead


def in_doubt(worker: Worker) -> bool:
    return worker.driver.needs_reconcile


def unsettled(worker: Worker) -> bool:
    return worker.driver.settled_count > 0


def all_settled(worker: Worker) -> bool:
    return not unsettled(worker)


def every(worker: Worker) -> list[Claimed]:
    """Of which the process knows, and that have not left it."""
    return [c for c in (*worker.waits, *worker.runs) if c.job in worker.driver]


def running(worker: Worker) -> list[Claimed]:
    return worker.runs


def harmless(worker: Worker) -> list[Claimed]:
    return [claimed for claimed in worker.runs if claimed.job.payload not in KILLERS]


def harmful(worker: Worker) -> list[Claimed]:
    return [claimed for claimed in worker.runs if claimed.job.payload in KILLERS]


def living(fleet: Any, among: Callable[[Worker], Any] = anybody) -> list[Worker]:
    """Those of a fleet's processes that live, and are meant."""
    return [worker for worker in fleet.workers if worker.alive and among(worker)]


def some(among: Callable[[Worker], Any]) -> Any:
    """A rule that needs one of these."""
    return precondition(lambda fleet: living(fleet, among))
