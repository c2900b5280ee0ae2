"""Makes a reaper for an app, lets only one process of many make a pass in each interval, and
records passes for `status` and metrics. A *pass* looks at all owners (the part of a worker that
claims jobs) and puts the jobs of dead ones back on their queues (``reaper/reaper.py``).

A worker's maintenance thread calls ``reaper_of`` and ``scheduled_pass_in_steps``; the reap task
that beat sends, in a pool process of a worker, ``scheduled_pass``; and `superfetch reap`
``reaper_of`` and ``record_pass``. A scheduled pass takes a lock for one interval. If its process
dies in the pass, another process makes the next pass when the interval is over, and finds what is
left. If it dies before the record, only the record is missing.
"""

from __future__ import annotations

from time import monotonic

from celery import Celery
from redis import Redis
from redis.exceptions import NoPermissionError

from ..model.process import ProcessImage
from ..owner.owner import Owner
from ..reaper.drain import Steps, finish
from ..reaper.reaper import Reaper
from ..reaper.report import Report
from ..store.keyspace import Keyspace
from ..store.queues import Queues
from .broker import database_of
from .guard import limits_of
from .notice import Notices
from .queues import lists_of


def reaper_of(app: Celery, client: Redis, owner: Owner | None = None) -> Reaper:
    """Make a reaper that sends the app's signals, uses its tasks' limits and makes its failure
    notifications. ``owner``: of this process, whose heartbeats have watched the other owners: the
    reaper uses its ``StalenessTracker``. None: the reaper begins to watch."""
    return Reaper(
        database_of(app, client),
        staleness=owner.staleness if owner else None,
        sender=app,
        notice=Notices(app),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper, by: str) -> Report:
    """Make one pass, unless another process has begun one in this interval (``ran`` is False).
    ``by``: the process that makes it, as ``superfetch status`` shows it."""
    return finish(scheduled_pass_in_steps(reaper, by))


def scheduled_pass_in_steps(reaper: Reaper, by: str) -> Steps[Report]:
    """Make a pass as ``scheduled_pass`` does; the caller can do other work after each batch of
    jobs. The lock is not released: it keeps other processes from a pass in this interval."""
    has_lock = reaper.database.try_lock("all", reaper.config.reap_interval)
    report = (yield from reaper.reap_in_steps()) if has_lock else Report(ran=False)
    if report.ran:
        with report.logging_errors("the figures for status and metrics"):
            record_pass(reaper, report, by)
    return report


def record_pass(reaper: Reaper, report: Report, by: str = "") -> None:
    """Record a pass, and how many jobs wait on each queue list and since when; in a pass that does
    its house-keeping also on those that no worker consumes. The time that this takes is added to
    the pass. ``by``: the process that made it; empty: this one."""
    here, started = ProcessImage.current(), monotonic()
    lists = report.lists.union(lists_of(reaper.sender) if reaper.sender else ())
    queues = Queues(reaper.database)
    abandoned: list[str] = []
    # A pass does its house-keeping only now and then: this costs an idle worker two commands.
    if report.trimmed_dead_set:
        # Jobs that come after the last worker of a queue has left would have no age otherwise. A
        # queue that no worker has consumed is known to its senders alone: without a note `status`
        # and the page would not show it, and would call all well while its jobs wait.
        left = {*reaper.registry.served(), *_sent_lists(reaper)} - lists
        abandoned = queues.filled(left)
    waiting = queues.note_waiting([*lists, *abandoned])
    report.seconds += monotonic() - started
    reaper.stats.record_pass(
        {
            "by": by or f"{here.host} pid {here.pid}",
            "seconds": round(report.seconds, 3),
            "owners": report.owners,
            "recovered": report.recovered,
            "killed": report.killed,
            "errors": report.errors,
            "interval": reaper.config.reap_interval,
        },
        waiting,
    )


def _sent_lists(reaper: Reaper) -> set[str]:
    """Return the queue lists that the bindings of senders name, as far as a hundred steps of SCAN
    find them; none where SCAN is forbidden."""
    if reaper.sender is None:
        return set()
    of_app = lists_of(reaper.sender)
    try:
        return Keyspace(reaper.database).bound_lists(of_app)
    except NoPermissionError:
        return set()
