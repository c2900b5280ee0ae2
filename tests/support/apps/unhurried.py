"""The shop, as if nobody minded what waits when a worker is told to stop, save at its end."""

from __future__ import annotations

import os

from celery_superfetch.worker import start
from celery_superfetch.worker import steps as worker
from support.apps.build import build_app

worker.Stopper.give_back = lambda self: None  # type: ignore[method-assign]
start.told_to_stop = lambda membership: False
start.keep_what_runs = lambda pool, forget: None

app = build_app(os.environ)
