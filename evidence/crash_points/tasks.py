"""Build the app of the workers of a lane. Its tasks report each start and end to the proxy on
a side connection (`proxy.py`), and the proxy writes that to the history.

If a process is killed in a run, the history has a start without an end.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Celery

from .shapes import REST

#: Options of stock Celery for the workers that are harmed: the best for it. With late acks, kombu
#: (5.7 and later) checks each second for messages whose visibility timeout (10 s) is over.
VISIBILITY = {
    "visibility_timeout": 10,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}
#: Options of stock Celery for the worker without harms. With a short visibility timeout, a part
#: that waits for a gate would be delivered to it a second time.
PATIENT = {
    "visibility_timeout": 3600,
    "unacked_key": "unacked_rest",
    "unacked_index_key": "unacked_rest_index",
    "unacked_mutex_key": "unacked_rest_mutex",
}


class Failure(Exception):
    """The error with which a target fails that has an errback."""


def build(env: Mapping[str, str]) -> Celery:
    """Build the app from environment variables: BROKER_URL, SIDE (a side, as in `Lane`), WITHOUT
    (safeties of the package to remove, with commas), HARMED (set for workers that are harmed)."""
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
    """Send an event to the proxy, and wait until it is written (or, for a gate, until it is
    open)."""
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
        if again:  # Celery sends a retry first: if that ran now, the state RETRY would follow it
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
