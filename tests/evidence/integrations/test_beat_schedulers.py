"""E1. Schedulers that keep beat's entries elsewhere send our reap task as Celery's own does."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Any

import pytest
import redis

from support.servers.database import Database
from support.waiting import always, eventually

REAP = "celery_superfetch.reap"
OPTIONS = {"reap_interval": 1}


def reaps_as_ever(worker: Any, start: Any, db: Database) -> None:
    """The task of a beat that ``start`` starts arrives once, expires, and is run."""
    worker(queues=["elsewhere"], options=OPTIONS)  # somebody is registered
    start()
    eventually(lambda: db.length() == 1, within=60)
    always(lambda: db.length() == 1, during=3, message="one message waits, and no more")
    headers = json.loads(db.contents("celery")[0])["headers"]
    assert headers["task"] == REAP
    assert datetime.fromisoformat(headers["expires"]) > datetime.now().astimezone()
    one = worker(options=OPTIONS, loglevel="DEBUG")
    eventually(lambda: one.log().count(f"Task {REAP}[") > 3)
    assert "succeeded" in one.log()


def test_django_celery_beat(worker, beat, db, cli, tmp_path):
    pytest.importorskip("django_celery_beat", reason="django-celery-beat is not installed")
    tables = tmp_path / "django.sqlite3"

    def start() -> None:
        beat(
            app="scheduled",
            args=["--scheduler", "django_celery_beat.schedulers:DatabaseScheduler"],
            env={"DJANGO_DB": str(tables)},
            options=OPTIONS,
            conf={"beat_max_loop_interval": 1},
        )

    def tasks() -> list[str]:
        with sqlite3.connect(tables) as book:
            rows = book.execute("SELECT task FROM django_celery_beat_periodictask").fetchall()
        return [task for (task,) in rows]

    reaps_as_ever(worker, start, db)
    assert REAP in tasks()

    def rolled_back(*options: str) -> str:
        way = {"process": True, "app": "scheduled", "environ": {"DJANGO_DB": str(tables)}}
        return str(cli("rollback", "--force", *options, **way).out)

    assert "Would remove 1 row of django-celery-beat: superfetch-reap." in rolled_back("--dry-run")
    assert REAP in tasks(), "nothing was changed"
    assert "Removed 1 row of django-celery-beat: superfetch-reap." in rolled_back()
    others = {task for task in tasks() if not task.startswith("celery.")}
    assert not others, "stock workers know no other"
    assert "django-celery-beat" not in rolled_back()


def test_redbeat(worker, beat, db, ledger):
    pytest.importorskip("redbeat", reason="celery-redbeat is not installed")

    def start() -> None:
        beat(
            app="scheduled",
            args=["--scheduler", "redbeat.RedBeatScheduler"],
            options=OPTIONS,
            conf={"beat_max_loop_interval": 1, "redbeat_redis_url": ledger.url},
        )

    reaps_as_ever(worker, start, db)
    with redis.Redis.from_url(ledger.url, decode_responses=True) as client:
        assert client.exists("redbeat:superfetch-reap")
