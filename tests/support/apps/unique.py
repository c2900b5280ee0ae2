"""The shop, and tasks of celery-once and celery-singleton."""

from __future__ import annotations

import os

from support.apps.build import build_app
from support.apps.unique_tasks import define

app = build_app(os.environ)
define(app, os.environ["LEDGER_URL"])
