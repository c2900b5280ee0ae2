"""A worker of this process, by its gate: Celery's own for tests, with a real pool and server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_superfetch.model.job import Job
from celery_superfetch.model.permit import clock
from celery_superfetch.worker.gate import Gate
from celery_superfetch.worker.stopping import owners_of
from support.waiting import eventually

HERE = ("threads", "solo")  # pools that run jobs in this process


def at_rest(gate: Gate) -> bool:
    return not gate.busy(unsettled=True) and gate.free() == gate.slots


def owner_of(gate: Gate) -> Any:
    [owner] = owners_of(gate.worker)
    return owner


def late(gate: Gate, monkeypatch: Any, act: Callable[[], object] = int) -> None:
    """As if the process that runs its next job had slept since it was handed over; meanwhile
    something else may `act`."""
    owner, begin = owner_of(gate), owner_of(gate).begin

    def begin_late(job: Job, **how: Any) -> float:
        if until := begin(job, **how):
            monkeypatch.setattr(owner, "begin", begin)
            act()
        return until and clock() - 1

    monkeypatch.setattr(owner, "begin", begin_late)


@contextmanager
def paused(gate: Gate) -> Iterator[None]:
    """Nothing may begin, as after a heartbeat that the server has not answered."""
    owner = owner_of(gate)
    begin, owner.begin = owner.begin, lambda *_, **__: 0.0
    try:
        yield
    finally:
        owner.begin = begin


def waits(gate: Gate, count: int = 1) -> list[Any]:
    """The jobs that wait for a slot, as soon as there are so many."""
    eventually(lambda: len(gate._waiting) == count, message=f"{count} wait for a slot")
    return list(gate._waiting)


def acknowledge(gate: Gate, waiting: Any) -> None:
    """As with early ack, of a job that was begun and came too late."""
    with gate._turn:
        waiting.request.acknowledge()
