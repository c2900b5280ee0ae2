"""The shop without its workers' maintenance thread: nobody reaps but the task that beat sends."""

from __future__ import annotations

import os

from celery_superfetch.worker.maintenance import MaintenanceThread
from support.apps.build import build_app

MaintenanceThread.run = lambda self: None  # type: ignore[method-assign]
app = build_app(os.environ)
