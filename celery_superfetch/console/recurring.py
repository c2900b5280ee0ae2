"""Reads the recurring tasks of an app: the entries of its ``beat_schedule``, and whether its beat
lives.

`superfetch recurring` and the page call ``recurring_of``. It only reads. Beat keeps the time of the
last run of an entry in a file on its own host, so that it is known for the reap task alone: each
tick of beat that sends it is in Redis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from celery import Celery
from celery.schedules import maybe_schedule, schedule

from ..inspector import Inspector
from ..model.arguments import LISTED_MAX_CHARS, cut
from ..model.config import REAP_ENTRY, REAP_TASK
from ..model.dead_job import utc
from ..model.humanize import passed, span
from .findings_of_workers import is_beat_late
from .overview import reap_interval_of

#: Schedulers that send the entries of ``beat_schedule`` and no others: the name of their module.
CELERYS_SCHEDULERS = "celery.beat"

#: Known schedulers with entries of their own -> where a person sees these.
ELSEWHERE = {
    "django_celery_beat": "in Django's admin, under Periodic tasks",
    "redbeat": "in Redis, in the keys that begin with redbeat:",
}

#: Entries of one app that are shown.
ENTRIES_MOST = 1000


def recurring_of(app: Celery, inspector: Inspector) -> dict[str, Any]:
    """Return the entries, that of the reap task first, and the beats of the database."""
    now = inspector.database.server_time()
    interval, time = reap_interval_of(inspector, now), utc(now / 1000) or ""
    beats = [
        {
            **row,
            "age": max(0.0, passed(row["at"], time)),
            "lives": not is_beat_late(row, time, interval),
        }
        for row in inspector.stats.beats()
    ]
    name = inspector.database.config.app_name
    app_beat = next((beat for beat in beats if beat["app"] == name), None)
    entries = [_entry(app, *pair, app_beat) for pair in dict(app.conf.beat_schedule or {}).items()]
    entries.sort(key=lambda entry: (entry["task"] != REAP_TASK, entry["name"]))
    scheduler = str(app.conf.beat_scheduler)
    return {
        "server_time": time,
        "app": name,
        # The setting; an option of beat's command (``-S``) is not known to other processes.
        "scheduler": scheduler,
        "elsewhere": _elsewhere(scheduler),
        "beat": app_beat,
        "beats": beats,
        "entries": entries[:ENTRIES_MOST],
        "left_out": max(0, len(entries) - ENTRIES_MOST),
    }


def _elsewhere(scheduler: str) -> str | None:
    """Return where a scheduler has entries that are not listed here; None: it has no others."""
    module = scheduler.partition(":")[0]
    if module == CELERYS_SCHEDULERS:
        return None
    places = (place for name, place in ELSEWHERE.items() if module.split(".")[0] == name)
    place = next(places, "where that scheduler stores them")
    return f"the scheduler {cut(scheduler, LISTED_MAX_CHARS)} has entries of its own: {place}"


def _entry(app: Celery, name: object, value: Any, beat: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return one entry. ``beat``: the app's own, if one has ticked within a week."""
    try:
        fields = dict(value)  # a ScheduleEntry has pairs, too
        options = fields.get("options") or {}
        found = {
            "task": str(fields.get("task")),
            "queue": None if options.get("queue") is None else str(options["queue"]),
            **_times(app, fields, beat),
        }
    except Exception as exc:  # a schedule may be an object of the user's, and raise anything
        why = f"cannot be read: {type(exc).__name__}"
        found = dict.fromkeys(("task", "queue", "every", "last", "next"))
        found |= {"task": "unknown", "schedule": why}
    return {"name": str(name), **found}


def _times(
    app: Celery, fields: Mapping[str, Any], beat: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the schedule of an entry as text, its last run and its next one, as far as they can
    be known."""
    when = maybe_schedule(fields["schedule"], app=app)
    last = beat["at"] if beat and fields.get("task") == REAP_TASK else None
    times = {"schedule": cut(str(when).strip("<>"), LISTED_MAX_CHARS), "every": None, "last": last}
    if type(when) is schedule:
        # An interval counts from the last run, which is known of the reap task alone.
        times |= {"schedule": f"every {span(when.seconds)}", "every": when.seconds}
        then = datetime.fromisoformat(last) + when.run_every if beat and last else None
        lives = beat is not None and beat["lives"]
        return {**times, "next": utc(then.timestamp()) if then and lives else None}
    left: timedelta = when.remaining_estimate(when.now())
    return {**times, "next": utc((datetime.now(timezone.utc) + left).timestamp())}


def beat_line(document: Mapping[str, Any]) -> str:
    """Return whether the app's beat lives, as one sentence."""
    beat = document["beat"]
    if beat is None:
        return (
            "No tick of this app's beat is recorded within a week: no beat runs, or it does not "
            f"send {REAP_ENTRY}"
        )
    where = f"on {beat['host']} (pid {beat['pid']})"
    if beat["lives"]:
        return f"Beat {where} ticked {span(beat['age'])} ago"
    return f"Beat {where} has not ticked for {span(beat['age'])}: its tasks are not sent"


def notes_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences below the entries."""
    yield beat_line(document)
    if document["elsewhere"]:
        text = document["elsewhere"]
        yield f"Not listed: {text}"


def next_of(entry: Mapping[str, Any]) -> str | None:
    """Return within which time an entry of an interval runs next, if its last run is unknown."""
    if entry["next"] is None and entry["every"] is not None:
        return f"within {span(entry['every'])}"
    return None
