"""The shop, whose result backend is away when it is to be told that a job was cancelled."""

from __future__ import annotations

import os
from typing import Any

from celery.backends.base import Backend

from celery_superfetch.worker.stopping import Returnable
from support.apps.build import build_app


def away(*args: Any, **kwargs: Any) -> None:
    raise ConnectionError("the result backend is away")


Backend.mark_as_retry = away

if os.environ.get("UNHEARD"):  # the control
    Returnable.__setattr__ = lambda request, name, value: (
        None if name == "_already_cancelled" else object.__setattr__(request, name, value)
    )

app = build_app(os.environ)
