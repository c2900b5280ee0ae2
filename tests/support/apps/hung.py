"""The shop, whose loop hangs at the job that the file HANG names, while the file is there."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

import redis.connection
from celery import signals
from celery.concurrency.solo import TaskPool
from celery.worker.control import inspect_command

from celery_superfetch.store.redis import connections as places
from support.apps.shop import app, ledger

HANG = Path(os.environ.get("HANG", "/nonexistent"))
_monkey = sys.modules.get("gevent.monkey")
#: The one that keeps gevent's hub.
_sleep = _monkey.get_original("time", "sleep") if _monkey else time.sleep

if "REPLY_TIMEOUT" in os.environ:
    places.REPLY_TIMEOUT_S = float(os.environ["REPLY_TIMEOUT"])


class OwnPool(TaskPool):
    """A user's own: `-P custom`, by CELERY_CUSTOM_WORKER_POOL."""


@signals.task_received.connect
def hang(request: Any, **_: Any) -> None:
    """Called in the loop's own thread, before the pool has the job."""
    while HANG.exists() and HANG.read_text() in request.args:
        _sleep(0.05)


@app.task(name="shop.keep", shared=False)
def keep(job: str) -> str:
    """Run, and leave nobody else a turn where it runs in the loop's thread."""

    book = ledger()
    book.started(job)
    while not book.released(job):
        _sleep(0.05)
    book.finished(job)
    return job


def _sockets() -> tuple[list[str], int]:
    """Connections to a server without a timeout, and how many there are in all."""
    # Since redis-py 5 all kinds of them have one ancestor.
    kinds = (getattr(redis.connection, "AbstractConnection", redis.Connection), redis.Connection)
    made = [thing for thing in gc.get_objects() if isinstance(thing, kinds)]
    opened = [(c, c._sock) for c in made if c._sock is not None]
    return [repr(c) for c, sock in opened if sock.gettimeout() is None], len(opened)


@app.task(name="shop.sockets", shared=False)
def sockets() -> tuple[list[str], int]:
    """Those of the process that runs it, once it has published."""
    app.send_task("shop.note", ("from within",), queue="elsewhere")
    return _sockets()


@inspect_command(name="sockets")
def of_this_process(state: Any, **_: Any) -> tuple[list[str], int]:
    """Those of the MainProcess."""
    return _sockets()
