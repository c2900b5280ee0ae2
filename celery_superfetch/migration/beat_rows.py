"""Deletes the rows by which django-celery-beat sends the reap task: stock workers do not know it.

`superfetch rollback` (``cli/stock.py``), a command in its own process, calls ``remove_beat_rows``
when it has requeued the jobs. If the process dies before, the rows stay; a second `rollback`
deletes them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from ..model.config import REAP_TASK


def remove_beat_rows(*, dry_run: bool = False) -> list[str]:
    """Delete the rows that send the reap task, and return their names, in order; with ``dry_run``
    delete nothing.

    Raises:
        Exception: Django, or its database, cannot be asked.
    """
    rows = _stored_rows()
    if rows is None:
        return []
    names = sorted(rows.values_list("name", flat=True))
    if not dry_run:
        rows.delete()
    return names


def _has_settings() -> bool:
    """Return whether Django has settings in this process, or an environment variable names some;
    configure nothing. That Django is loaded does not say so: kombu loads it wherever it is
    installed."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        return True
    conf = sys.modules.get("django.conf")
    return conf is not None and bool(conf.settings.configured)


def _stored_rows() -> Any:
    """Return the rows as a QuerySet, or None where this process has no such table."""
    if not _has_settings():
        return None
    try:
        django, apps = import_module("django"), import_module("django.apps").apps
    except ImportError:
        return None
    if not apps.ready:  # a command loads no task modules, so Celery's Django fixup has not run
        django.setup()
    if not apps.is_installed("django_celery_beat"):
        return None
    return apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task=REAP_TASK)
