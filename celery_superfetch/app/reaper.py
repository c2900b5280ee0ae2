"""What beat's task, the workers and the CLI share: a reaper that speaks for an app."""

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
    """A reaper that speaks for ``app``: its guard decides, and its notices tell the callers."""
    return Reaper(
        database_of(app, client),
        silence=owner.silence if owner else None,
        sender=app,
        notice=Notices(app),
        limits=limits_of(app),
    )


def scheduled_pass(reaper: Reaper, by: str) -> Report:
    """One pass unless another had its turn in this interval, whoever ran it."""
    return finish(scheduled_pass_in_steps(reaper, by))


def scheduled_pass_in_steps(reaper: Reaper, by: str) -> Steps[Report]:
    """As ``scheduled_pass``, a batch of jobs in each step."""
    turn = reaper.database.take_turn("all", reaper.config.reap_interval)
    report = (yield from reaper.reap_in_steps()) if turn else Report(ran=False)
    if report.ran:
        with report.surviving("the notes for status and metrics"):
            note(reaper, report, by)
    return report


def note(reaper: Reaper, report: Report, by: str = "") -> None:
    """Write down the pass, ``by`` whom as operators know it, and since when what waits: where
    nobody consumes, too. What that takes counts as time of the pass."""
    here, started = ProcessImage.current(), monotonic()
    lists = report.lists.union(lists_of(reaper.sender) if reaper.sender else ())
    queues = Queues(reaper.database)
    abandoned: list[str] = []
    if report.kept_house:  # at each pass it would be two commands more of an idle worker
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
