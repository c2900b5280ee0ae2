"""The shop, whose result backend is away when it is to be told that a job was cancelled."""

from __future__ import annotations

import os
from typing import Any

from celery.backends.base import Backend

from support.apps.build import build_app


def away(*args: Any, **kwargs: Any) -> None:
    raise ConnectionError("the result backend is away")


Backend.mark_as_retry = away

app = build_app(os.environ)
