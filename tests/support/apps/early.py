"""The shop, and tasks that ack early: some by an import order, some by their author's choice."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, Task, shared_task

import celery_superfetch
from support.apps.build import STEP, add_tasks
from support.servers.ledger import Ledger

URLS = {"broker": os.environ["BROKER_URL"], "backend": os.environ["RESULT_URL"]}
app = Celery("shop", set_as_current=False, **URLS)


def hold(job: str) -> None:
    book = Ledger(os.environ["LEDGER_URL"])
    book.started(job)
    while not book.released(job):
        time.sleep(STEP)
    book.finished(job)


class Careful(Task):  # type: ignore[misc]
    """A base class whose author prefers a loss to a second run."""

    abstract = True
    acks_late = False


class Hostile(Task):  # type: ignore[misc]
    """A task that does not let itself be examined; HOSTILE=1 registers one."""

    name = "early.hostile"
    run = staticmethod(hold)

    @property
    def reject_on_worker_lost(self) -> bool:
        raise RuntimeError("not to be asked")


def define(name: str, **options: Any) -> Any:
    return app.task(name=f"early.{name}", shared=False, **options)(hold)


# A library uses its task before anybody has read the settings.
define("library").s()
define("library_by_choice", acks_late=False).s()
define("library_late", acks_late=True).s()
app.register_task(
    type("Registered", (app.Task,), {"name": "early.registered", "run": staticmethod(hold)})()
)

app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True)
celery_superfetch.install(app, reap_interval=1, strike_limit=7)

define("late")
define("choice", acks_late=False)
define("base", base=Careful)
shared_task(name="early.shared")(hold)
add_tasks(app, os.environ["LEDGER_URL"])
if os.environ.get("HOSTILE") == "1":
    app.register_task(Hostile())

# Settings that come after all of that, and replace what there was.
app.conf.update(broker_transport_options={"owner_ttl": 90}, task_default_queue="celery")
