"""The shop, whose pool loses children while other threads of their parent are busy.

HOLDS=1: at each fork another thread is in the midst of Celery's code, where it makes `app.amqp`,
which whoever publishes needs.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from celery import Celery
from celery.events import EventDispatcher
from celery.signals import worker_before_create_process, worker_ready

from celery_superfetch import job_recovered
from support.apps.shop import app, ledger

held, forked, ready = threading.Event(), threading.Event(), threading.Event()
os.register_at_fork(after_in_parent=forked.set)
HOLDS = os.environ.get("HOLDS") == "1"
#: Seconds that one waits for the other: a gate keeps one of them waiting in vain.
PATIENCE = 5.0


def busy_with_celery() -> None:
    """Hold what a child needs until a child is forked, unless it is the loop's thread that asks."""
    if HOLDS and threading.current_thread() is not threading.main_thread():
        with Celery.__dict__["amqp"].lock:
            forked.clear()
            held.set()
            forked.wait(PATIENCE)
            held.clear()


@worker_ready.connect(weak=False)
def is_ready(**_: Any) -> None:
    ready.set()


@worker_before_create_process.connect(weak=False)
def before_a_fork(**_: Any) -> None:
    if HOLDS and ready.is_set():
        held.wait(PATIENCE)


@job_recovered.connect(weak=False)
def recovered(**_: Any) -> None:
    busy_with_celery()


class Dispatcher(EventDispatcher):
    """A connection for events takes its time to open."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        busy_with_celery()
        super().__init__(*args, **kwargs)


app.events.dispatcher_cls = Dispatcher


@app.task(name="forking.told", shared=False)
def told(task_id: str) -> None:
    ledger().gave_up(task_id, "told")


@app.task(name="forking.publish", shared=False)
def publish(job: str) -> None:
    app.send_task("shop.note", (job,))


app.finalize()
