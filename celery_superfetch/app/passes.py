"""What beat's task, the workers and the CLI share: a reaper that speaks for an app."""

from __future__ import annotations

from celery import Celery
from redis import Redis

from ..owner.membership import Membership
from ..reaper.drain import Report
from ..reaper.reaper import Reaper
from .announcer import Announcements, announcements_of
from .broker import database_of
from .poison_pill import limits_of


def reaper_of(app: Celery, client: Redis, membership: Membership | None = None) -> Reaper:
    """A reaper that speaks for ``app``: its guard decides, its callers are told.

    Arguments:
        membership: the worker's, which has watched the others and announces kills in threads of
            its own; None: each pass announces at its end.
    """
    return Reaper(
        database_of(app, client),
        watch=membership.heart.watch if membership else None,
        sender=app,
        announcements=(
            announcements_of(app, membership) if membership else Announcements(app, client)
        ),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper) -> Report:
    """One pass unless another had its turn in this interval, whoever ran it."""
    config = reaper.config
    full = reaper.reap(full=True, lock="full", lock_for=config.full_sweep_interval)
    return full if full.ran else reaper.reap(lock="all", lock_for=config.reap_interval)
