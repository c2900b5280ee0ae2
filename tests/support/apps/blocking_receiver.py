"""The shop, with a receiver of `ownership_lost` that takes its time: until the file BLOCK is gone.

With FOREIGN=1 it is the control: the heart sees to what follows from its heartbeats.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery_superfetch.owner import heart
from celery_superfetch.signals import ownership_lost
from support.apps.build import build_app

BLOCK = Path(os.environ["BLOCK"])
app = build_app(os.environ)


@ownership_lost.connect
def slow(**_: Any) -> None:
    BLOCK.with_suffix(".called").touch()
    while BLOCK.exists():
        time.sleep(0.05)


if os.environ.get("FOREIGN") == "1":
    alone = heart.Heart.heartbeat

    def and_all_that_follows(self: heart.Heart) -> Any:
        heard = alone(self)
        while self.overdue:
            self.overdue.popleft()()
        return heard

    heart.Heart.heartbeat = and_all_that_follows  # type: ignore[method-assign]
