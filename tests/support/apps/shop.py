"""The shop for worker processes: `celery -A support.apps.shop`, configured by the environment."""

from __future__ import annotations

import os

from celery import Celery

from support.apps.build import build_app
from support.servers.ledger import Ledger

app: Celery = build_app(os.environ)


def ledger() -> Ledger:
    """One for each call: a client must not cross the pool's fork, nor threads in odd states."""
    return Ledger(os.environ["LEDGER_URL"])
