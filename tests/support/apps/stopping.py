"""Jobs that make their own worker stop, in each way that a job has."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import redis
from celery.exceptions import WorkerShutdown, WorkerTerminate

from support.apps.build import OWNER_PID, STEP
from support.apps.shop import app, ledger
from support.servers.database import Database
from support.waiting import eventually

PATIENCE = 120.0  # seconds for which a job runs on if nothing cuts it short


def twice(number: int, send: Any) -> None:
    """Send a signal, and again when the worker has heard the first one."""
    send(number)
    wait_until_stopping()
    send(number)


def to_worker(number: int) -> None:
    os.kill(OWNER_PID, number)


def to_group(number: int) -> None:
    os.killpg(os.getpgid(OWNER_PID), number)


def wait_until_stopping() -> None:
    """Until the registry knows that the worker stops."""
    with redis.Redis.from_url(os.environ["BROKER_URL"]) as client:
        db = Database(client)
        eventually(lambda: "stopping" in [db.fact(owner, "state") for owner in db.owners()], 60)


@app.task(name="stopping.stop", shared=False)
def stop(job: str, how: str) -> None:
    ledger().started(job)
    if how == "quit":
        to_worker(signal.SIGQUIT)
    elif how == "quit the group":
        to_group(signal.SIGQUIT)
    elif how == "int twice":
        twice(signal.SIGINT, to_worker)
    elif how == "int twice the group":
        twice(signal.SIGINT, to_group)
    elif how == "term":
        to_worker(signal.SIGTERM)
    elif how == "term the group":
        to_group(signal.SIGTERM)
    elif how == "shutdown, and a crash":
        app.control.shutdown()
        wait_until_stopping()
        to_worker(signal.SIGKILL)
    elif how == "WorkerShutdown":
        raise WorkerShutdown(0)
    elif how == "WorkerTerminate":
        raise WorkerTerminate(1)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not ledger().released(job):
        time.sleep(STEP)
    ledger().finished(job)
