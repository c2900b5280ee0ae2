"""The reap task's entry in a user's ``beat_schedule``, which is a plain dictionary."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from celery import Celery
from celery.app.utils import Settings

from ..model.config import REAP_ENTRY, REAP_TASK

LINK = "_superfetch_schedule"  # the attribute of an app, and of its settings, that has the schedule


class Schedule:
    """The dictionary that an app's ``beat_schedule`` is, and the user's own one from which it was
    made: another app may share that, and would send a task that it does not have."""

    def __init__(self, own: Any, before: Schedule | None) -> None:
        self._own: Mapping[str, Any] = own if isinstance(own, Mapping) else {}
        #: The schedule that the user has replaced by this one, or made a part of it.
        self._before = before
        self._copied: dict[str, Any] = {}
        self._entry: dict[str, Any] | None = None  # ours, once it was added
        self.merged: dict[str, Any] = {}
        self.catch_up()

    def catch_up(self) -> None:
        """Copy what has changed in the user's own dictionary: modules that are loaded later add
        their entries there, and beat would never send them."""
        if self._before is not None:
            self._before.catch_up()
        own, copied = dict(self._own), self._copied
        for name, entry in own.items():
            if name not in copied or copied[name] is not entry:
                self.merged[name] = entry
        for name in copied.keys() - own.keys():
            if self.merged.get(name) is copied[name]:
                del self.merged[name]
        self._copied = own

    @property
    def is_refused(self) -> bool:
        """Whether the user has removed our entry."""
        return self._entry is not None and REAP_ENTRY not in self.merged

    def add(self, interval: float) -> None:
        """Add our entry, or renew its interval; not where the user has one of that name, or has
        removed it."""
        entry = {"task": REAP_TASK, "schedule": interval}
        before = self._before
        ours = self._entry or (before._entry if before is not None else None)
        present = self.merged.get(REAP_ENTRY)
        refused = self.is_refused or (before is not None and before.is_refused)
        if (present is None and not refused) or (present is not None and present is ours):
            self.merged[REAP_ENTRY] = entry
        self._entry = entry


class CaughtUp(Settings):
    """An app's settings, whose ``beat_schedule`` has what the user's own dictionary has by now."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        schedule = vars(self).get(LINK)
        if schedule is not None and value is schedule.merged:
            schedule.catch_up()
        return value


def scheduled(app: Celery, interval: float) -> dict[str, Any]:
    """The schedule of an app, as a plain dictionary with our entry; called again, the same one
    unless the user has replaced it."""
    conf, found = app.conf, app.conf.beat_schedule
    schedule: Schedule | None = vars(app).get(LINK)
    if schedule is None or found is not schedule.merged:
        schedule = Schedule(found, before=schedule)
    schedule.add(interval)
    vars(app)[LINK] = vars(conf)[LINK] = schedule
    if type(conf) is Settings:  # else another's: it has what was there when it was configured
        object.__setattr__(conf, "__class__", CaughtUp)  # a plain one would be a setting
    return schedule.merged


def stored_rows() -> Any:
    """The rows by which django-celery-beat sends the reap task: a QuerySet, or None where this
    process has no such table. They outlive this package, and stock workers do not know the task.

    Raises:
        Exception: Django, or its database, cannot be asked.
    """
    if "django" not in sys.modules and "DJANGO_SETTINGS_MODULE" not in os.environ:
        return None
    try:
        django, apps = import_module("django"), import_module("django.apps").apps
    except ImportError:
        return None
    if not apps.ready:  # a command loads no task modules, and so Celery did not set it up
        django.setup()
    if not apps.is_installed("django_celery_beat"):
        return None
    return apps.get_model("django_celery_beat", "PeriodicTask").objects.filter(task=REAP_TASK)
