"""Another app on the shop's database: it has another name, and none of the shop's tasks."""

from __future__ import annotations

import json
import os

from celery import Celery

import celery_superfetch

app = Celery("stranger", broker=os.environ["BROKER_URL"], set_as_current=False)
celery_superfetch.install(app, **json.loads(os.environ["SUPERFETCH_OPTIONS"]))
app.finalize()
