"""Adds the entry of the reap task (``reap_task.py``: it recovers the jobs of dead workers) to an
app's ``beat_schedule``, without changing the user's dictionary.

``installation.configure`` calls ``scheduled``, and puts the copy with the entry that it returns
into the app's settings. When beat reads ``beat_schedule``, what has changed in the user's
dictionary is first copied. Nothing here is stored on a server, so a death leaves nothing behind. A
scheduler with a database stores the entry itself; at a rollback to stock Celery
``migration/beat_rows.py`` deletes that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.app.utils import Settings

from ..model.config import REAP_ENTRY, REAP_TASK

LINK = "_superfetch_schedule"  # the attribute of an app, and of its settings, that has the schedule


class Schedule:
    """A copy of a user's ``beat_schedule`` with the reap task's entry. If the entry were added to
    the user's dictionary, another app that shares it would send a task that it does not have.

    Arguments:
        users: the user's dictionary, or what else ``beat_schedule`` was set to.
        before: the earlier Schedule, if the user has replaced the setting since. The user's new
            dictionary may be made from the earlier copy, and so have the reap task's entry.
    """

    def __init__(self, users: Any, before: Schedule | None) -> None:
        self._users: Mapping[str, Any] = users if isinstance(users, Mapping) else {}
        self._before = before
        self._copied: dict[str, Any] = {}  # the user's dictionary at the last ``catch_up``
        self._entry: dict[str, Any] | None = None  # the reap task's, as ``add`` made it last
        self.merged: dict[str, Any] = {}  # what the app's ``beat_schedule`` is set to
        self.catch_up()

    def catch_up(self) -> None:
        """Copy what has changed in the user's dictionary since the last call. Modules that are
        loaded later add their entries there: if they were not copied, beat would never send
        them."""
        if self._before is not None:
            self._before.catch_up()
        users, copied = dict(self._users), self._copied
        for name, entry in users.items():
            if name not in copied or copied[name] is not entry:
                self.merged[name] = entry
        for name in copied.keys() - users.keys():
            if self.merged.get(name) is copied[name]:
                del self.merged[name]
        self._copied = users

    @property
    def is_refused(self) -> bool:
        """True if the user has removed the reap task's entry after it was added."""
        return self._entry is not None and REAP_ENTRY not in self.merged

    def add(self, interval: float) -> None:
        """Add the reap task's entry, or renew its interval (s); not where the user has an entry of
        that name, or has removed it."""
        entry = {"task": REAP_TASK, "schedule": interval}
        before = self._before
        latest = self._entry or (before._entry if before is not None else None)
        present = self.merged.get(REAP_ENTRY)
        refused = self.is_refused or (before is not None and before.is_refused)
        # An entry that is the latest one was added here, and may be renewed; another is the user's.
        if (present is None and not refused) or (present is not None and present is latest):
            self.merged[REAP_ENTRY] = entry
        self._entry = entry


class CaughtUp(Settings):
    """An app's settings, which copy the changes of the user's dictionary when ``beat_schedule`` is
    read."""

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        schedule = vars(self).get(LINK)
        if schedule is not None and value is schedule.merged:
            schedule.catch_up()
        return value


def scheduled(app: Celery, interval: float) -> dict[str, Any]:
    """Return the schedule of an app as a plain dictionary with the reap task's entry, which is sent
    each ``interval`` s. Later calls return the same dictionary, unless the user has replaced it."""
    conf, found = app.conf, app.conf.beat_schedule
    schedule: Schedule | None = vars(app).get(LINK)
    if schedule is None or found is not schedule.merged:
        schedule = Schedule(found, before=schedule)
    schedule.add(interval)
    vars(app)[LINK] = vars(conf)[LINK] = schedule
    # If the user has a class of settings, the copy does not follow later changes.
    if type(conf) is Settings:
        # A plain assignment would make a setting of the name ``__class__``.
        object.__setattr__(conf, "__class__", CaughtUp)
    return schedule.merged
