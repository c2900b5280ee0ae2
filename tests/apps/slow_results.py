"""The shop, whose pool's children send the two parts of a large result far apart."""

from __future__ import annotations

import os
import time
from typing import Any

from billiard.connection import Connection

from celery_superfetch.worker import start

if os.environ.get("FORGETFUL"):  # what was read of it is lost with the event loop
    start.read_on = lambda pool: None

from apps.build import STEP, build_app
from harness.ledger import Ledger

#: Bytes from which on billiard sends head and body of a message one after the other.
LARGE = 16385

app = build_app(os.environ)
send = Connection._send


def send_when_told(self: Connection, part: Any, *args: Any) -> None:
    if len(part) >= LARGE:
        ledger = Ledger(os.environ["LEDGER_URL"])
        ledger.started("result")
        while not ledger.released("result"):
            time.sleep(STEP)
    send(self, part, *args)


Connection._send = send_when_told
