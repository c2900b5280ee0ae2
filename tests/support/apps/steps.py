"""The shop, with jobs that send a message because they end, once the test lets them."""

from __future__ import annotations

from typing import Any

from kombu.exceptions import OperationalError

from support.apps.features import started, task, total
from support.apps.shop import app

__all__ = ["app", "total"]

hold = app.tasks["shop.hold"].run


@task(bind=True)
def again(self: Any, job: str) -> None:
    if self.request.retries:
        started(f"retry of {job}")
    else:
        hold(job)
        raise self.retry(countdown=0)


@task(bind=True)
def replaced(self: Any, job: str) -> None:
    hold(job)
    raise self.replace(app.tasks["shop.note"].si(f"instead of {job}"))


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
