"""The shop, with tasks that publish several messages by themselves, and then the end of their job.

In the first run of a job its second message waits until the test has killed the worker.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

from celery.exceptions import Retry
from celery.signals import after_task_publish, task_postrun

from support.apps.build import STEP
from support.apps.shop import app, ledger

__all__ = ["app"]

#: The queue of all that these publish, which nobody serves.
NEXT = "next"
PAGES = 5

_published: Counter[str] = Counter()


@after_task_publish.connect(weak=False)
def stop(body: Any = None, **_: Any) -> None:
    args, *_ = body
    kind = str(args[0]).split()[0] if args else ""
    if not kind.startswith("s-"):
        return
    _published[kind] += 1
    if _published[kind] == 2 and ledger().first(kind):
        ledger().gave_up(kind, "between")
        while True:  # until it is killed
            time.sleep(STEP)


def note(job: str) -> Any:
    return app.tasks["shop.note"].si(job).set(queue=NEXT)


def task(run: Any) -> Any:
    options = {"bind": True, "max_retries": None, "default_retry_delay": 0}
    return app.task(name=f"streams.{run.__name__}", shared=False, **options)(run)


def begins(kind: str) -> None:
    _published.pop(kind, None)
    ledger().started(kind)


@task
def pages(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES):
        self.retry(args=[f"{kind} {number}"], throw=False, queue=NEXT)
    return f"{kind} end"


@task
def alike(self: Any, kind: str) -> str:
    begins(kind)
    for _ in range(PAGES):
        self.retry(args=[f"{kind} same"], throw=False, queue=NEXT)
    return f"{kind} end"


@task
def countdowns(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES):
        self.retry(args=[f"{kind} {number}"], throw=False, queue=NEXT, countdown=number % 2)
    return f"{kind} end"


@task
def queues(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES):
        self.retry(args=[f"{kind} {number}"], throw=False, queue=f"{NEXT}-{number % 2}")
    return f"{kind} end"


@task
def last(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES - 1):
        self.retry(args=[f"{kind} {number}"], throw=False, queue=NEXT)
    raise self.retry(args=[f"{kind} {PAGES - 1}"], queue=NEXT)


@task
def caught(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES):
        with suppress(Retry):
            self.retry(args=[f"{kind} {number}"], queue=NEXT)
    return f"{kind} end"


@task
def replaced(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES - 1):
        self.retry(args=[f"{kind} {number}"], throw=False, queue=NEXT)
    raise self.replace(note(f"{kind} {PAGES - 1}"))


@task
def callbacks(self: Any, kind: str) -> str:
    """Streams parts to its own callback."""
    begins(kind)
    for number in range(PAGES):
        for callback in self.request.callbacks:
            app.signature(callback).apply_async((f"{kind} {number}",))
    return f"{kind} end"


@task
def links(self: Any, kind: str) -> str:
    """Publishes the next link by hand."""
    begins(kind)
    for number in range(PAGES):
        app.signature(self.request.chain[-1]).apply_async((f"{kind} {number}",))
    return f"{kind} end"


@task
def errbacks(self: Any, kind: str) -> None:
    begins(kind)
    for number in range(PAGES):
        for errback in self.request.errbacks:
            app.signature(errback).apply_async((f"{kind} {number}",))
    raise ValueError(f"{kind} fails on purpose")


@task
def added(self: Any, kind: str) -> str:
    begins(kind)
    for number in range(PAGES):
        self.add_to_chord(note(f"{kind} {number}"))
    return f"{kind} end"


@task
def received(self: Any, kind: str) -> str:
    begins(kind)
    return f"{kind} end"


@task_postrun.connect(sender=app.tasks["streams.received"], weak=False)
def publish(args: Any = (), **_: Any) -> None:
    for number in range(PAGES):
        note(f"{args[0]} {number}").apply_async()
