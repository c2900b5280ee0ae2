"""The shop, with a task whose strategy asks the server something."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from celery import Task
from celery.exceptions import Reject
from celery.worker.strategy import default
from redis import Redis

from support.apps.shop import app

note = app.tasks["shop.note"].run


def ask() -> None:
    """Ask for the length of a list; the key may have another type."""
    Redis.from_url(os.environ["BROKER_URL"]).llen("refused:key")


class Asks(Task):  # type: ignore[misc]
    abstract = True

    def Strategy(self, *args: Any) -> Callable[..., None]:
        receive = default(*args)

        def ask_and_receive(*message: Any, **options: Any) -> None:
            ask()
            receive(*message, **options)

        return ask_and_receive


@app.task(name="refused.asks", shared=False, base=Asks)
def asks(job: str) -> str:
    return str(note(job))


@app.task(name="refused.rejects", shared=False)
def rejects(job: str) -> None:
    note(job)
    raise Reject("on purpose", requeue=False)


app.finalize()
