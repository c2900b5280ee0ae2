"""The shop with Celery's features: retries, rejects, time limits, rates, early acks, batches."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import celery.app.task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded, WorkerShutdown

from support.apps.batches import Batches
from support.apps.build import OWNER_PID
from support.apps.shop import app, ledger
from support.servers.ledger import Ledger

# Celery 5.7 has one setting for failures and one for timeouts, where there was one for both.
ON_TIMEOUT = (
    "acks_on_timeout"
    if hasattr(celery.app.task.Task, "acks_on_timeout")
    else "acks_on_failure_or_timeout"
)

#: Seconds of a time limit: a child must come to its first line in them, on a busy machine.
LIMIT = 1.0
#: Seconds to the next try. Celery writes "retried" when that has been sent: on a busy machine it
#: would come behind, and over, the result of the very next run.
RETRY = 1.0


hold = app.tasks["shop.hold"].run


def started(job: str) -> Ledger:
    book = ledger()
    book.started(job)
    return book


def task(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def make(run: Callable[..., Any]) -> Any:
        return app.task(name=f"features.{run.__name__}", shared=False, **options)(run)

    return make


@task()
def burn(job: str, until: str) -> str:
    """Compute without a pause, and without anything that gevent patches, until a file is."""
    book = started(job)
    end = Path(until)
    while not end.exists():
        sum(range(1000))
    book.finished(job)
    return job


@task()
def total(numbers: list[int], job: str) -> int:
    started(job)
    return sum(numbers)


@task()
def told(parent_id: str) -> None:
    """An errback."""
    started(f"told {parent_id}")


@task(bind=True)
def reject(self: Any, job: str, requeue: bool) -> str:
    """Reject; what comes back is done."""
    started(job)
    if requeue and self.request.delivery_info["redelivered"]:
        return job
    raise Reject("on purpose", requeue=requeue)


@task()
def memory_error(job: str) -> None:
    """Python's own, of one allocation too large."""
    started(job)
    raise MemoryError("unable to allocate")


@task()
def outlive(job: str) -> None:
    """What a library does that handles TERM in its own way: its process goes on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold(job)


@task()
def slow_end(job: str) -> None:
    """Its process closes all that it has a moment before it is dead, as each does."""
    started(job)
    os.closerange(3, 1024)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


@task(bind=True)
def seen(self: Any, job: str, crash: bool = False) -> Any:
    """What a task sees of its earlier runs; whatever it sends goes to `elsewhere`."""
    book = started(job)
    if crash and book.first(f"run of {job}"):
        os.kill(os.getpid(), signal.SIGKILL)
    self.retry(queue="elsewhere", throw=False, args=[f"retry of {job}"])
    self.apply_async((f"child of {job}",), queue="elsewhere")
    request = self.request
    return [request.get("superfetch"), request.delivery_info["redelivered"], request.headers]


def dies(self: Any, job: str, *ways: str) -> None:
    """Each run sees its strikes, and ends in its own way; the last way is that of the rest."""
    book = started(job)
    book.gave_up(job, f"saw {(self.request.get('superfetch') or {}).get('strikes', 0)}")
    run = book.runs()[job]
    way = ways[min(run, len(ways)) - 1]
    if way == "child":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "owner":
        os.kill(OWNER_PID, signal.SIGKILL)
        time.sleep(30)
    elif way == "retry":
        raise self.retry()


# For Celery 5.7's `task_retry_on_worker_lost`.
dying = {"bind": True, "shared": False, "max_retries": None, "default_retry_delay": 0}
app.task(name="features.dies", **dying)(dies)
app.task(name="features.dies_early", acks_late=False, **dying)(dies)


@task()
def exits(job: str, status: Any) -> None:
    started(job)
    if status == "interrupt":
        raise KeyboardInterrupt
    sys.exit(status)


@task()
def stops(job: str) -> None:
    started(job)
    raise WorkerShutdown(0)


@task()
def ignore(job: str) -> None:
    started(job)
    raise Ignore


@task(bind=True)
def retry(self: Any, job: str) -> str:
    started(job)
    if self.request.retries < 2:
        raise self.retry(countdown=RETRY)
    return job


@task(bind=True, autoretry_for=(ConnectionError,), retry_kwargs={"countdown": RETRY})
def autoretry(self: Any, job: str) -> str:
    started(job)
    if self.request.retries < 2:
        raise ConnectionError
    return job


@task(acks_late=False)
def early(job: str) -> str:
    started(job)
    return job


app.task(name="features.early_hold", shared=False, acks_late=False)(hold)


@task(rate_limit="10/s")
def rated(job: str) -> str:
    started(job)
    return job


@task(acks_on_failure_or_timeout=False)
def dropped(job: str) -> None:
    started(job)
    raise ValueError("neither acked nor requeued by Celery's rules: it is rejected")


@task(soft_time_limit=LIMIT)
def soft(job: str) -> str:
    started(job)
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        return "soft"
    return "not limited"


@task()
def killed_greenlet(job: str, helper: bool) -> None:
    """Its greenlet is killed, by itself or by a watchdog of its own."""
    import gevent

    started(job)
    me = gevent.getcurrent()
    if helper:
        gevent.spawn_later(0.2, me.kill)
        time.sleep(60)
    gevent.kill(me)
    gevent.sleep(60)  # gevent kills a greenlet when it waits next: here, and not after the task


@task()
def cleans_up(job: str) -> None:
    """At its soft limit it begins to clean up, and hangs."""
    book = started(job)
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        book.started("cleanup")
        time.sleep(60)


@task(time_limit=LIMIT)
def hard(job: str) -> None:
    started(job)
    time.sleep(60)


@task(time_limit=LIMIT, **{ON_TIMEOUT: False})
def hard_again(job: str) -> None:
    started(job)
    time.sleep(60)


@task(base=Batches)
def batch(jobs: Sequence[str]) -> None:
    for job in jobs:
        started(job)
