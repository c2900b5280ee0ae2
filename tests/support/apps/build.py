"""The shop: a Celery app whose tasks behave well, hang, fail, or kill the one who runs them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Celery

from support.servers.ledger import Ledger

# Imported by the MainProcess before it forks its pool, so a pool child still sees the owner here.
OWNER_PID = os.getpid()
STEP = 0.05


def build_app(env: Mapping[str, str]) -> Celery:
    """An app from BROKER_URL, RESULT_URL, LEDGER_URL, SUPERFETCH, SUPERFETCH_OPTIONS, CONF.

    Controls: SUPERFETCH=0 (stock transport, but with late acks, which is the best that stock can
    do) and WITHOUT=..., the names of safeties that are taken away. HAPPENS=... names what befalls.
    """
    for what in ("WITHOUT", "HAPPENS"):
        for name in filter(None, env.get(what, "").split(",")):
            getattr(import_module(f"support.apps.{what.lower()}"), name)()
    app = Celery("shop", broker=env["BROKER_URL"], set_as_current=False)
    app.conf.update(
        result_backend=env.get("RESULT_URL") or None,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=True,
    )
    app.conf.update(json.loads(env.get("CONF") or "{}"))
    if env.get("SUPERFETCH", "1") == "1":
        import celery_superfetch

        celery_superfetch.install(app, **json.loads(env.get("SUPERFETCH_OPTIONS") or "{}"))
    else:
        app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
    add_tasks(app, env["LEDGER_URL"])
    return app


def add_tasks(app: Celery, ledger_url: str) -> None:
    """Register the tasks as `shop.<name>`."""

    def ledger() -> Ledger:
        # One per call: a client must not cross the pool's fork, nor threads in odd states.
        return Ledger(ledger_url)

    @app.task(name="shop.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="shop.note", shared=False)
    def note(job: str) -> str:
        book = ledger()
        book.started(job)
        book.finished(job)
        return job

    @app.task(name="shop.hold", shared=False)
    def hold(job: str, seconds: float = 60.0) -> str:
        """Run until released by the test, or for `seconds`."""
        book = ledger()
        book.started(job)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not book.released(job):
            time.sleep(STEP)
        book.finished(job)
        return job

    @app.task(name="shop.put_off", shared=False, bind=True)
    def put_off(self: Any, job: str, seconds: float) -> str:
        """Run once more, so much later."""
        ledger().started(job)
        if not self.request.retries:
            raise self.retry(countdown=seconds)
        return job

    @app.task(name="shop.kill_child", shared=False)
    def kill_child(job: str) -> None:
        """What a segfault or the OOM killer does: end the process that runs the task."""
        ledger().started(job)
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="shop.kill_owner", shared=False)
    def kill_owner(job: str, seconds: float = 0.0) -> None:
        """End the MainProcess: the parent in prefork, this very process in threads and solo."""
        ledger().started(job)
        time.sleep(seconds)
        if OWNER_PID == 1:
            raise RuntimeError("a namespace's init cannot be killed from inside: use Host.kill()")
        os.kill(OWNER_PID, signal.SIGKILL)
        time.sleep(30)  # as a pool child, wait here for the kernel to take us along

    @app.task(name="shop.stop_owner", shared=False)
    def stop_owner(job: str) -> None:
        """What a unit's `OOMPolicy=stop` does: tell the MainProcess to stop, and end this one."""
        ledger().started(job)
        os.kill(OWNER_PID, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="shop.fail", shared=False)
    def fail(job: str) -> None:
        ledger().started(job)
        raise ValueError(f"{job} fails on purpose")

    app.finalize()
