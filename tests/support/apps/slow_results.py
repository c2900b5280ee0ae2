"""The shop, whose pool's children send the two parts of a large result far apart."""

from __future__ import annotations

import time
from typing import Any

from billiard.connection import Connection

from support.apps.build import STEP
from support.apps.shop import app, ledger  # noqa: F401

#: Bytes from which on billiard sends head and body of a message one after the other.
LARGE = 16385
send = Connection._send


def send_when_told(self: Connection, part: Any, *args: Any) -> None:
    if len(part) >= LARGE:
        book = ledger()
        book.started("result")
        while not book.released("result"):
            time.sleep(STEP)
    send(self, part, *args)


Connection._send = send_when_told
