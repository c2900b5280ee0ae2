"""The shop, whose jobs start without asking: the control for what that guards."""

from __future__ import annotations

import os
from typing import Any

from apps.build import build_app
from celery_superfetch import worker


def _no_guard(pool: Any) -> None:
    """In place of `guard_starts`."""


worker.guard_starts = _no_guard
app = build_app(os.environ)
