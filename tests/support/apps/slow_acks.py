"""The shop, in which an ack, and the note that a job was cancelled, wait to be let on."""

from __future__ import annotations

import time
from typing import Any

from celery.backends.base import Backend

from celery_superfetch.owner.in_flight.outbox import Outbox
from support.apps.build import STEP
from support.apps.shop import app, ledger  # noqa: F401

ack, mark_as_retry = Outbox.ack, Backend.mark_as_retry


def wait_for(what: str) -> None:
    book = ledger()
    book.started(what)
    while not book.released(what):
        time.sleep(STEP)


def ack_when_told(self: Outbox, claimed: Any) -> None:
    wait_for("ack")
    ack(self, claimed)


def note_when_told(self: Backend, *args: Any, **kwargs: Any) -> Any:
    wait_for("note")
    return mark_as_retry(self, *args, **kwargs)


Outbox.ack, Backend.mark_as_retry = ack_when_told, note_when_told
