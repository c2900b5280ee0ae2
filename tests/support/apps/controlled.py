"""The shop with an inspect command whose reply is no JSON: `inspect unwritable` fails after it."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command

from support.apps.shop import app as app


@inspect_command(name="unwritable")
def unwritable(state: Any, **_: Any) -> set[int]:
    return {1, 2}
