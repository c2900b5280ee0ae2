"""`celery superfetch recurring`: beat's entries, their next runs, and whether beat lives."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.schedules import crontab, schedule

from celery_superfetch.console.recurring import recurring_of
from celery_superfetch.console.web import create_app
from celery_superfetch.inspector import Inspector
from celery_superfetch.model.config import REAP_ENTRY, REAP_TASK
from support.forms import EVIL, Tags, browser_at
from support.waiting import eventually


class Odd(schedule):
    """A schedule of a user's, which raises."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise ValueError(EVIL)


@pytest.fixture
def planned(make_app: Any) -> Any:
    """An app with an entry of each kind."""
    app = make_app(options={"reap_interval": 30})
    app.conf.beat_schedule = {
        "a-daily": {"task": "shop.report", "schedule": crontab(minute="30", hour="5")},
        "b-often": {
            "task": "shop.poll",
            "schedule": 300.0,
            "args": ("S3CRET",),
            "options": {"queue": "slow"},
        },
        "c-odd": {"task": "shop.odd", "schedule": Odd(timedelta(seconds=5))},
        "d-wrong": {"task": "shop.wrong"},
        f"e-{EVIL}": {"task": EVIL, "schedule": 60, "options": {"queue": EVIL}},
        REAP_ENTRY: {"task": REAP_TASK, "schedule": 30.0},
    }
    return app


def read(app: Any, bench: Any) -> dict[str, Any]:
    return recurring_of(app, Inspector(bench.database))


def test_each_entry_has_its_schedule_and_what_is_known_of_its_runs(planned, bench):
    found = read(planned, bench)
    reap, daily, often, odd, wrong, _ = found["entries"]
    assert reap["name"] == REAP_ENTRY, "the reap task first"
    assert (reap["last"], reap["next"], reap["every"]) == (None, None, 30)
    then = datetime.fromisoformat(daily["next"])
    assert (then.minute, then.second) == (30, 0)
    assert timedelta(0) < then - datetime.now(timezone.utc) <= timedelta(days=1)
    assert "30 5 * * *" in daily["schedule"]
    assert (often["schedule"], often["next"], often["queue"]) == ("every 5 min", None, "slow")
    assert "ValueError" in odd["schedule"]
    assert "KeyError" in wrong["schedule"]
    assert found["beat"] is None
    assert "S3CRET" not in str(found)


def test_a_tick_of_beat_is_the_last_run_of_the_reap_task(planned, bench):
    tick = bench.stats.record_tick(0)
    reap = read(planned, bench)["entries"][0]
    last, then = (datetime.fromisoformat(reap[name]) for name in ("last", "next"))
    assert round(last.timestamp() * 1000) == tick
    assert then - last == timedelta(seconds=30)
    found = read(planned, bench)
    assert found["beat"]["lives"]
    old = f'[{tick - 10**7}, 30, "web", 7]'
    bench.client.hset(bench.keys.beats, bench.config.app_name, old)
    found = read(planned, bench)
    assert not found["beat"]["lives"]
    assert found["entries"][0]["next"] is None, "a beat that is gone sends nothing"


def test_a_real_beat_is_seen_to_live_and_to_be_gone(cli, beat, bench):
    bench.owner(lists=["mail"])
    one = beat(options={"reap_interval": 1})
    eventually(lambda: "ticked" in cli("recurring").out, every=0.3)
    assert "has not ticked" not in cli("recurring").out
    one.signal_all(signal.SIGKILL)
    eventually(lambda: "has not ticked for" in cli("recurring").out, 90, every=1)


@pytest.mark.parametrize(
    ("scheduler", "place"),
    [
        ("celery.beat:PersistentScheduler", None),
        ("django_celery_beat.schedulers:DatabaseScheduler", "Django's admin"),
        ("redbeat.RedBeatScheduler", "redbeat:"),
        ("shop.beats:Own", "where that scheduler stores them"),
    ],
)
def test_entries_of_another_scheduler_are_said_to_be_elsewhere(planned, bench, scheduler, place):
    planned.conf.beat_scheduler = scheduler
    elsewhere = read(planned, bench)["elsewhere"]
    assert (elsewhere is None) == (place is None)
    assert (place or "") in (elsewhere or "")


def test_the_page_has_the_same_and_no_markup(planned, bench):
    bench.stats.record_tick(0)
    bench.client.hset(bench.keys.beats, EVIL, '[1, 1, "x", 3]')
    browser = browser_at(create_app(planned))
    page = browser.get("/recurring")
    assert page.status_code == 200
    tags = Tags(page.text)
    assert (tags.count["script"], tags.count["img"], tags.count["tr"]) == (1, 0, 7)
    assert page.text.index(REAP_ENTRY) < page.text.index("a-daily")
    assert "within 5 min" in page.text
    assert "ticked" in page.text
    assert "S3CRET" not in page.text
    token = "correct-horse-battery"
    assert browser_at(create_app(planned, token=token)).get("/recurring").status_code == 401
    assert browser.post("/recurring").status_code == 405
