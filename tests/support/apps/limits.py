"""The shop, with tasks that say how many strikes they have, and a serializer that kills."""

from __future__ import annotations

import os
import signal
from typing import Any

from kombu.serialization import register

from support.apps.shop import app, ledger


def explode(_: Any) -> None:
    ledger().started("bomb")
    os.kill(os.getpid(), signal.SIGKILL)


register(
    "bomb", lambda data: "", explode, content_type="application/x-bomb", content_encoding="utf-8"
)
app.conf.accept_content = ["json", "bomb"]


kill_child = app.tasks["shop.kill_child"].run
app.task(name="limits.once", superfetch_strike_limit=1, shared=False)(kill_child)
app.task(name="limits.twice", superfetch_strike_limit=2, shared=False)(kill_child)


@app.task(name="limits.never", superfetch_strike_limit=None, shared=False)
def never(job: str) -> None:
    """Lives on at the sixth attempt."""
    book = ledger()
    book.started(job)
    if book.runs()[job] < 6:
        os.kill(os.getpid(), signal.SIGKILL)
    book.finished(job)
