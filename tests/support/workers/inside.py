"""A worker of this process, by its gate: Celery's own for tests, with a real pool and server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery_superfetch.worker.gate import Gate
from celery_superfetch.worker.stopping import owners_of
from support.interventions import start_next_too_late, starts_withheld
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
    start_next_too_late(owner_of(gate), monkeypatch, act)


@contextmanager
def paused(gate: Gate) -> Iterator[None]:
    """Nothing may begin, as after a heartbeat that the server has not answered."""
    with starts_withheld(owner_of(gate)):
        yield


def waits(gate: Gate, count: int = 1) -> list[Any]:
    """The requests that wait for a slot, as soon as there are so many."""
    eventually(lambda: len(gate._waiting) == count, message=f"{count} wait for a slot")
    return list(gate._waiting)


def acknowledge(gate: Gate, waiting: Any) -> None:
    """As with early ack, of a job that was begun and came too late."""
    with gate._pump_lock:
        waiting.acknowledge()
