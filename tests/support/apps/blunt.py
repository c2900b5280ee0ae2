"""The shop, with a guard that blames everything a dead worker held, and lets nothing run alone."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from celery_superfetch.model.strikes import Blame, Recovery
from celery_superfetch.reaper import judge as recoveries
from support.apps.build import build_app

recovery_of = Recovery.of


def without_probation(*args: Any, **kwargs: Any) -> Recovery:
    return replace(recovery_of(*args, **kwargs), probation=False)


recoveries.blame = lambda *_: Blame.EXACT
Recovery.of = without_probation  # type: ignore[method-assign,assignment]

app = build_app(os.environ)
