"""What beat's task, the workers and the CLI share: a reaper that speaks for an app."""

from __future__ import annotations

from celery import Celery
from redis import Redis

from ..model.watch import Watch
from ..reaper.drain import Report
from ..reaper.reaper import Reaper
from .announcer import Announcements
from .broker import database_of
from .poison_pill import limits_of

#: Scopes of the locks that keep passes to one per interval, whoever runs them.
LOCK_ALL = "all"
LOCK_FULL = "full"


def reaper_of(
    app: Celery,
    client: Redis,
    watch: Watch | None = None,
    announcements: Announcements | None = None,
) -> Reaper:
    """A reaper that speaks for ``app``: its guard decides, its callers are told.

    Arguments:
        announcements: the worker's; None: each pass tells them at its end.
    """
    return Reaper(
        database_of(app, client),
        watch=watch,
        sender=app,
        announcements=announcements or Announcements(app, client, waits=True),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper) -> Report:
    """One pass unless another had its turn in this interval."""
    config = reaper.config
    full = reaper.reap(full=True, lock=LOCK_FULL, lock_for=config.full_sweep_interval)
    if full.ran:
        return full
    return reaper.reap(lock=LOCK_ALL, lock_for=config.reap_interval)
