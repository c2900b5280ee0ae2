"""The shop, whose worker's loop stays where it has the lock of what is in flight, until let on."""

from __future__ import annotations

import time
from typing import Any

from celery.signals import worker_ready

from celery_superfetch.owner.membership import memberships
from support.apps.build import STEP
from support.apps.shop import app, ledger  # noqa: F401


def stay() -> None:
    book = ledger()
    if not book.released("stay") or not book.first("stay"):
        return
    [membership] = memberships()
    with membership.in_flight.lock:
        book.started("lock")
        while not book.released("lock"):
            time.sleep(STEP)


@worker_ready.connect
def look(sender: Any, **_: Any) -> None:
    sender.timer.call_repeatedly(STEP, stay)
