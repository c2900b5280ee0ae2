"""The task that beat schedules, and what it and the CLI share."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from redis import Redis

from .announcing import Announcer
from .connection import client_of, config_of
from .drain import Report
from .poison_pill import limits_of
from .reaper import Reaper
from .watch import Watch

logger = get_logger(__name__)

#: Name of the task and of its entry in ``beat_schedule``.
REAP_TASK = "celery_superfetch.reap"
REAP_ENTRY = "superfetch-reap"

#: Scopes of the locks that keep passes to one per interval, whoever runs them.
LOCK_ALL = "all"
LOCK_FULL = "full"


def reaper_of(app: Celery, client: Redis, watch: Watch | None = None) -> Reaper:
    """A reaper that speaks for ``app``: its guard decides, its callers are told."""
    return Reaper(
        client,
        config_of(app),
        watch=watch,
        sender=app,
        announce=Announcer(app, client),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper) -> Report:
    """One pass unless another had its turn in this interval."""
    config = reaper.config
    full = reaper.reap(full=True, lock=LOCK_FULL, lock_for=config.full_sweep_interval)
    if full.ran:
        return full
    return reaper.reap(lock=LOCK_ALL, lock_for=config.reap_interval)


def add_reap_task(app: Celery) -> None:
    """Register ``celery_superfetch.reap`` with ``app``, once."""

    @app.task(
        name=REAP_TASK,
        # Shared, it would be registered with every other app of the process.
        shared=False,
        ignore_result=True,
        # One that is lost is made up for by the next; it must not be recovered itself.
        acks_late=False,
        reject_on_worker_lost=False,
    )
    def reap() -> str:
        client = client_of(app)
        try:
            return str(scheduled_pass(reaper_of(app, client)))
        finally:
            client.close()


def reap_entry(interval: float) -> dict[str, Any]:
    """The entry for ``beat_schedule``; a run that waited for an interval is not worth it."""
    return {"task": REAP_TASK, "schedule": interval, "options": {"expires": interval}}
