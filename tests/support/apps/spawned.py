"""The shop, with a chord whose body kills the process that publishes it, once."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery import signals
from redis import Redis

from support.apps.shop import app

FIRST: Redis = Redis.from_url(os.environ["BROKER_URL"])


@app.task(name="spawned.part")
def part(index: int) -> int:
    return index


@app.task(name="spawned.body")
def body(results: list[int]) -> list[int]:
    return results


@signals.before_task_publish.connect
def die_once(sender: Any = None, **_: Any) -> None:
    if sender == "spawned.body" and FIRST.set("spawned:died", 1, nx=True):
        os.kill(os.getpid(), signal.SIGKILL)
