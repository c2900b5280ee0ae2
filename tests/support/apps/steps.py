"""The shop, with jobs that send a message because they end, once the test lets them."""

from __future__ import annotations

from typing import Any

from celery import chain
from kombu.exceptions import OperationalError

from support.apps.features import started, task, total
from support.apps.shop import app

__all__ = ["app", "total"]

hold = app.tasks["shop.hold"].run


@task(bind=True)
def again(self: Any, job: str, **options: Any) -> None:
    if self.request.retries:
        started(f"retry of {job}")
    else:
        hold(job)
        raise self.retry(countdown=0, **options)


@task(bind=True)
def replaced(self: Any, job: str, *others: Any) -> None:
    """By a note, or by other signatures as a chain."""
    hold(job)
    note = app.tasks["shop.note"].si(f"instead of {job}")
    raise self.replace(chain(map(app.signature, others)) if others else note)


@task()
def fails(job: str) -> None:
    hold(job)
    raise ValueError(f"{job} fails on purpose")


@task()
def part(job: str) -> int:
    hold(job)
    return 1


@task()
def delays(job: str) -> str:
    """Its body sends something, and hears that it could not."""
    hold(job)
    try:
        app.tasks["shop.note"].delay(f"child of {job}")
    except OperationalError as exc:
        return type(exc).__name__
    return "sent"
