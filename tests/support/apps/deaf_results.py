"""The shop, whose result backend is away when it is to be told that a job was cancelled."""

from __future__ import annotations

from typing import Any

from celery.backends.base import Backend

from support.apps.shop import app  # noqa: F401


def away(*args: Any, **kwargs: Any) -> None:
    raise ConnectionError("the result backend is away")


Backend.mark_as_retry = away
