"""What an app's settings give away; no server is asked."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

import celery_superfetch
from celery_superfetch.console.doctor import of_settings


def charge() -> None:
    """A task's body."""


def app_with(installed: bool = True, task: dict[str, Any] | None = None, **conf: Any) -> Celery:
    app = Celery("shop", broker="redis://localhost:6399/0", set_as_current=False)
    app.conf.result_backend = "redis://localhost:6399/1"
    app.conf.update(conf)
    if installed:
        celery_superfetch.install(app)
    app.task(name="shop.charge", shared=False, **(task or {}))(charge)
    app.finalize()
    for name in [name for name in app.tasks if name.startswith("pytest_celery")]:
        del app.tasks[name]  # shared by a plugin of pytest with every app
    return app


def test_an_app_that_only_calls_install_is_well():
    assert of_settings(app_with()) == []


def test_the_beat_entry_is_told_by_its_task():
    entry = {"task": "celery_superfetch.reap", "schedule": 5}
    assert of_settings(app_with(beat_schedule={"mine": entry})) == []
    app = app_with()
    app.conf.beat_schedule = {"other": {"task": "shop.charge", "schedule": 5}}
    [found] = of_settings(app)
    assert (found.level, found.code) == ("warning", "no-beat-entry")


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("warning", "early-ack", {"task": {"acks_late": False}}),
    ("warning", "early-ack", {"task_acks_late": False}),
    ("warning", "reject-off", {"task": {"reject_on_worker_lost": False}}),
    ("warning", "reject-off", {"task_reject_on_worker_lost": False}),
    ("note", "no-results", {"result_backend": None}),
    ("note", "ignored-results", {"task": {"ignore_result": True}}),
    ("note", "visibility-timeout", {"broker_transport_options": {"visibility_timeout": 60}}),
    ("warning", "prefetch-unbounded", {"worker_prefetch_multiplier": 0}),
]


@pytest.mark.parametrize(("level", "code", "settings"), CASES)
def test_each_is_found_alone(level, code, settings):
    [found] = of_settings(app_with(**settings))
    assert (found.level, found.code) == (level, code)
    assert found.fix
    if code in ("early-ack", "reject-off", "ignored-results"):
        assert found.text.startswith("1 task with ")
        assert found.text.endswith(": shop.charge")


def test_a_task_that_was_used_before_the_settings_is_a_finding_of_its_own():
    app = Celery("shop", broker="redis://localhost:6399/0", set_as_current=False)
    app.task(name="shop.charge", shared=False)(charge).s()
    app.task(name="shop.chosen", shared=False, acks_late=False)(charge)
    app.conf.update(task_acks_late=True, result_backend="redis://localhost:6399/1")
    celery_superfetch.install(app)
    outdated, chosen = of_settings(app)
    assert (outdated.level, outdated.code) == ("warning", "outdated-task")
    assert outdated.text.endswith(": shop.charge")
    assert (chosen.level, chosen.code) == ("warning", "early-ack")
    assert chosen.text.endswith(": shop.chosen")


def test_names_are_few():
    app = app_with(task_acks_late=False)
    for number in range(20):
        app.task(name=f"shop.t{number}", shared=False)(charge)
    [found] = of_settings(app)
    assert "21 tasks" in found.text
    assert found.text.endswith("shop.t12, shop.t13, shop.t14 and 13 more")


def test_the_transport_alone_is_no_install():
    codes = [one.code for one in of_settings(app_with(installed=False))]
    assert codes == ["not-installed", "early-ack"]
