"""The Celery app: `celery -A shop worker`, run in the folder of `manage.py`."""

from __future__ import annotations

import os

from celery import Celery

import celery_superfetch

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
celery_superfetch.install(app)
