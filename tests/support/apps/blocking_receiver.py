"""The shop, with a receiver of `ownership_lost` that takes time: until the file BLOCK is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery_superfetch.signals import ownership_lost
from support.apps.shop import app  # noqa: F401

BLOCK = Path(os.environ["BLOCK"])


@ownership_lost.connect
def slow(**_: Any) -> None:
    BLOCK.with_suffix(".called").touch()
    while BLOCK.exists():
        time.sleep(0.05)
