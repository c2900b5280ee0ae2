"""The shop, whose worker looks at a dead child of its pool for as long as a file exists."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery.concurrency.asynpool import AsynPool

from support.apps.shop import app  # noqa: F401

read_the_dead = AsynPool.process_flush_queues


def read_slowly(pool: AsynPool, child: Any) -> None:
    read_the_dead(pool, child)
    while Path(os.environ["FUNERAL"]).exists():
        time.sleep(0.01)


AsynPool.process_flush_queues = read_slowly
