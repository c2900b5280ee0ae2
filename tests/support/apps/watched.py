"""The shop with an eye on itself: `inspect resources` counts what a reconnect could leak.

With LEAK=1 it is the control: each connection leaves one thing of every kind behind.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import psutil
from celery import bootsteps
from celery.worker.control import inspect_command
from kombu.transport import redis

from celery_superfetch.transport.fetch.blocking_reads import BlockingRead
from celery_superfetch.transport.fetch.fetch_loop import FetchLoop
from support.apps.shop import app

#: Made anew for each connection.
MADE = (BlockingRead, FetchLoop, redis.Channel, redis.MultiChannelPoller, redis.Transport)


@inspect_command(name="resources")
def resources(state: Any, **_: Any) -> dict[str, int]:
    """What this worker's main process has of everything."""
    timer = state.consumer.timer
    for row in [row for row in list(timer.queue) if row.entry.canceled]:
        # It keeps its connection until it would have been due, which nobody waits for here.
        getattr(timer, "_queue", set()).remove(row)
    gc.collect()
    return {
        "threads": threading.active_count(),
        "files": psutil.Process().num_fds(),
        "timers": len(timer.queue),
        "objects": sum(isinstance(thing, MADE) for thing in gc.get_objects()),
    }


class Leak(bootsteps.StartStopStep):
    """A consumer step runs once for each connection."""

    requires = ("celery.worker.consumer.connection:Connection",)
    kept: list[Any] = []  # noqa: RUF012 - to be forgotten by nobody is its purpose

    def start(self, consumer: Any) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        self.kept += [os.open(os.devnull, os.O_RDONLY), consumer.connection.default_channel]
        # What is set while connecting Celery cancels with the connection.
        consumer.timer.call_after(0, consumer.timer.call_repeatedly, (3600, len, ((),)))


if os.environ.get("LEAK") == "1":
    app.steps["consumer"].add(Leak)
