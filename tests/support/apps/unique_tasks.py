"""Tasks of celery-once and celery-singleton: publishing locks, the job's end unlocks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton

from support.servers.ledger import Ledger

#: Seconds after which celery-once forgets a lock. celery-singleton forgets none by itself.
TTL = 3600


def define(app: Celery, url: str) -> None:
    """Register the tasks; ``url`` is the database of the ledger and of the locks."""
    app.conf.ONCE = {
        "backend": "celery_once.backends.Redis",
        "settings": {"url": url, "default_timeout": TTL},
    }
    app.conf.singleton_backend_url = url

    def hold(job: str) -> None:
        book = Ledger(url)
        book.started(job)
        while not book.released(job):
            time.sleep(0.05)
        book.finished(job)

    def kill(job: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    bases: dict[str, Any] = {"once": QueueOnce, "singleton": Singleton}
    for name, base in bases.items():
        app.task(hold, base=base, name=f"unique.{name}.hold", shared=False)
        app.task(
            kill, base=base, name=f"unique.{name}.kill", shared=False, superfetch_strike_limit=1
        )
