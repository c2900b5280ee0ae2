"""The app of the storm's workers: its tasks write down what they do, and nobody else does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery

from ..history import History

#: Options of ours: as quick as the storm. What is left out is the default.
OPTIONS = {"heartbeat_interval": 2, "owner_ttl": 10, "reap_interval": 2}

#: Seconds of the others' visibility timeout: longer than any job here, and than a worker's start.
TIMEOUT = 30
STOCK = {
    "visibility_timeout": TIMEOUT,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
PLUS = {"visibility_timeout": TIMEOUT}
SIDES = ("ours", "stock", "plus")

#: Seconds for which a client waits for the broker.
SOCKET_TIMEOUT = 5

#: Runs of a pill that each side may need: ours by its default, stock has no limit of its own.
PILL_RUNS = 3


def build(env: Mapping[str, str]) -> Celery:
    """The app from SIDE, BROKER_URL, RESULT_URL, HISTORY, WORKER, WITHOUT (safeties taken out)."""
    for name in filter(None, env.get("WITHOUT", "").split(",")):
        getattr(import_module("support.apps.without"), name)()
    side = env["SIDE"]
    app = Celery("storm", broker=env["BROKER_URL"], set_as_current=False)
    app.conf.update(
        result_backend=env["RESULT_URL"],
        result_expires=86400,
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_proc_alive_timeout=30,
        broker_transport_options={"socket_timeout": SOCKET_TIMEOUT},
    )
    if side == "ours":
        import celery_superfetch

        celery_superfetch.install(app, **OPTIONS)
    else:
        app.conf.broker_transport_options |= STOCK if side == "stock" else PLUS
        if side == "plus":
            app.conf.broker_transport = "celery_redis_plus.transport:Transport"
    _add_tasks(app, env)
    return app


def _add_tasks(app: Celery, env: Mapping[str, str]) -> None:
    history = History(Path(env["HISTORY"]), new=False)
    worker = env.get("WORKER", "")

    @app.task(name="storm.step", shared=False, bind=True, max_retries=1)
    def step(
        self: Any,
        *given: Any,
        job: str,
        step: str,
        seconds: float,
        act: str = "",
        later: float = 0.0,
    ) -> str:
        """Act: "retry" (once, so many seconds later), or "kill" (its own process)."""
        name = f"{step}#{self.request.retries}" if self.request.retries else step
        run = os.urandom(6).hex()
        # kombu makes this tag when a message is published, and no redelivery changes it.
        message = (self.request.properties or {}).get("delivery_tag", "")
        facts = {"job": job, "step": name, "run": run, "worker": worker, "pid": os.getpid()}
        values = {"given": given[0]} if step == "body" else {}
        history.write("start", **facts, message=message, **values)
        time.sleep(seconds)
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        history.write("end", job=job, run=run)
        if act == "retry" and not self.request.retries:
            raise self.retry(countdown=later)
        return step

    app.finalize()


def outcome(stored: str | None) -> dict[str, str]:
    """State of a task, and the type of its error, from the text that Celery keeps of it."""
    kept = json.loads(stored) if stored else {"status": "PENDING"}
    if kept["status"] == "FAILURE":
        return {"state": "FAILURE", "type": kept["result"]["exc_type"]}
    return {"state": kept["status"]}
