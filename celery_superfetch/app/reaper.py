"""Makes a reaper for an app, takes care that one process of many makes a pass, and records passes
for status and metrics.

A worker's maintenance thread calls it, beat's reap task (in a pool process of a worker), and the
commands. A scheduled pass takes a lock for one interval. If its process dies in the pass, another
process makes the next pass when the interval is over, and finds what is left
(``reaper/reaper.py``). If it dies before the record, only the record is missing.
"""

from __future__ import annotations

from time import monotonic

from celery import Celery
from redis import Redis

from ..model.process import ProcessImage
from ..owner.owner import Owner
from ..reaper.drain import Steps, finish
from ..reaper.reaper import Reaper
from ..reaper.report import Report
from ..store.queues import Queues
from .broker import database_of
from .guard import limits_of
from .notice import Notices
from .queues import lists_of


def reaper_of(app: Celery, client: Redis, owner: Owner | None = None) -> Reaper:
    """Make a reaper that sends the app's signals, uses its tasks' limits and makes its failure
    notifications. ``owner``: of this process; what it has learned of silent owners is used."""
    return Reaper(
        database_of(app, client),
        silence=owner.silence if owner else None,
        sender=app,
        notice=Notices(app),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper, by: str) -> Report:
    """Make one pass, unless another process has begun one in this interval (``ran`` is False).
    ``by``: who makes it, as ``superfetch status`` shows it."""
    return finish(scheduled_pass_in_steps(reaper, by))


def scheduled_pass_in_steps(reaper: Reaper, by: str) -> Steps[Report]:
    """Make a pass as ``scheduled_pass`` does, a batch of jobs in each step."""
    has_lock = reaper.database.take_turn("all", reaper.config.reap_interval)
    report = (yield from reaper.reap_in_steps()) if has_lock else Report(ran=False)
    if report.ran:
        with report.surviving("the notes for status and metrics"):
            record_pass(reaper, report, by)
    return report


def record_pass(reaper: Reaper, report: Report, by: str = "") -> None:
    """Record a pass, and since when jobs wait on each queue list, also on those without a consumer.
    The time that this takes is added to the pass. ``by``: who made it; empty: this process."""
    here, started = ProcessImage.current(), monotonic()
    lists = report.lists.union(lists_of(reaper.sender) if reaper.sender else ())
    queues = Queues(reaper.database)
    abandoned: list[str] = []
    if report.kept_house:  # not at each pass: it costs an idle worker two commands
        # Jobs that come after the last worker of a queue has left would have no age otherwise.
        abandoned = queues.filled({*reaper.registry.served()} - lists)
    queues.note_waiting([*lists, *abandoned])
    report.seconds += monotonic() - started
    reaper.history.passed(
        {
            "by": by or f"{here.host} pid {here.pid}",
            "seconds": round(report.seconds, 3),
            "owners": report.owners,
            "recovered": report.recovered,
            "killed": report.killed,
            "errors": report.errors,
            "interval": reaper.config.reap_interval,
        }
    )
