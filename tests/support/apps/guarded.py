"""The shop, and tasks that guard themselves against a second run, as an executor of workflows does:
whoever finds its work marked as running raises Ignore.

Their caller sees a result, or waits for a timeout of its own, which is long.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from celery_superfetch import Decision, Recovery, job_recovering
from support.apps.build import STEP, build_app
from support.servers.ledger import Ledger

app: Celery = build_app(os.environ)

#: Only a job that ran is blamed for anything.
RAN = ("exact", "suspect")


def execute(work: str) -> str:
    """Run a piece of work, unless it is marked as running."""
    book = Ledger(os.environ["LEDGER_URL"])
    if not book.first(f"{work} is running"):
        book.gave_up(work, "already running")
        raise Ignore(f"{work} is already running")
    book.started(work)
    while not book.released(work):
        time.sleep(STEP)
    book.finished(work)
    return work


def define(name: str, **options: Any) -> None:
    app.task(name=f"guarded.{name}", shared=False, **options)(execute)


define("by_default")
define("at_once", superfetch_strike_limit=1)
define("never_again")
app.finalize()


@job_recovering.connect
def never_again(sender: Any, recovery: Recovery, **_: Any) -> Decision | None:
    """Whatever ended its process, and whatever ran there beside it."""
    if recovery.task == "guarded.never_again" and recovery.blame.value in RAN:
        return Decision.KILL
    return None  # it has not run, or the guard decides
