"""The app of the workers: its tasks say on a side connection what they do."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Celery

from .shapes import REST

#: Stock at its best: late acks, and a look each second for what is overdue (kombu 5.7 and later).
VISIBILITY = {
    "visibility_timeout": 10,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
#: For the worker that nobody harms: a part that is kept waiting is not taken from it.
PATIENT = {
    "visibility_timeout": 3600,
    "unacked_key": "unacked_rest",
    "unacked_index_key": "unacked_rest_index",
    "unacked_mutex_key": "unacked_rest_mutex",
}


class Failure(Exception):
    """What the target of an errback fails with."""


def build(env: Mapping[str, str]) -> Celery:
    """The app from BROKER_URL, SIDE (ours or stock), WITHOUT (safeties taken out), HARMED."""
    for name in filter(None, env.get("WITHOUT", "").split(",")):
        getattr(import_module("support.apps.without"), name)()
    url = env["BROKER_URL"]
    app = Celery("evidence", broker=url, backend=url, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
    )
    if env["SIDE"] == "ours":
        import celery_superfetch

        celery_superfetch.install(app)
    else:
        app.conf.broker_transport_options = VISIBILITY if env.get("HARMED") else PATIENT
    _add_tasks(app)
    return app


def _tell(event: str, **more: Any) -> None:
    """Say it, and go on when it is written down (or, of a gate, when it is open)."""
    line = json.dumps({"event": event, "pid": os.getpid(), **more}).encode()
    with socket.socket(socket.AF_UNIX) as side:
        side.connect(os.environ["EVIDENCE_SIDE"])
        side.sendall(line + b"\n")
        side.recv(16)


def _add_tasks(app: Celery) -> None:
    @app.task(name="evidence.job", shared=False, bind=True, max_retries=1)
    def job(
        self: Any, *given: Any, point: str, name: str, act: str = "", gate: str | None = None
    ) -> str:
        again = "-again" if self.request.retries else ""
        if again:  # Celery notes that a job is retried after it has sent the retry
            gate = "settled"
        if gate:
            _tell("gate", point=point, name=name, gate=gate)
        _tell("start", point=point, name=name + again, given=given)
        if act == "retry" and not again:
            raise self.retry(countdown=0, queue=REST)
        _tell("end", point=point, name=name + again)
        if act == "fail":
            raise Failure(point)
        return name

    @app.task(name="evidence.errback", shared=False)
    def errback(failed: str, *, point: str, name: str) -> None:
        _tell("start", point=point, name=name, given=[failed])
        _tell("end", point=point, name=name)

    app.finalize()
