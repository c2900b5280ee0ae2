"""What the user set stays set, in whichever way and however late."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

import celery_superfetch

OURS = {"task_acks_late": True, "task_reject_on_worker_lost": True}
OLD_NAMES = {
    "task_acks_late": "CELERY_ACKS_LATE",
    "task_reject_on_worker_lost": "CELERY_REJECT_ON_WORKER_LOST",
}


def module(**values: Any) -> types.ModuleType:
    made = types.ModuleType("settings")
    vars(made).update(values)
    return made


def new() -> Celery:
    return Celery("shop", broker="redis://localhost:6399/0", set_as_current=False)


def attribute_before(name: str) -> Celery:
    app = new()
    setattr(app.conf, name, False)
    return celery_superfetch.install(app)


def attribute_after(name: str) -> Celery:
    app = celery_superfetch.install(new())
    setattr(app.conf, name, False)
    return app


def attribute_after_reading(name: str) -> Celery:
    app = celery_superfetch.install(new())
    assert app.conf[name] is True
    setattr(app.conf, name, False)
    app.finalize()
    return app


def update_before(name: str) -> Celery:
    app = new()
    app.conf.update({name: False})
    return celery_superfetch.install(app)


def update_after(name: str) -> Celery:
    app = celery_superfetch.install(new())
    app.conf.update({name: False})
    return app


def module_before(name: str) -> Celery:
    app = new()
    app.config_from_object(module(**{name: False}))
    return celery_superfetch.install(app)


def module_before_and_read(name: str) -> Celery:
    app = new()
    app.config_from_object(module(**{name: False}), force=True)
    return celery_superfetch.install(app)


def module_after(name: str) -> Celery:
    app = celery_superfetch.install(new())
    app.config_from_object(module(**{name: False}))
    return app


def module_after_reading(name: str) -> Celery:
    app = celery_superfetch.install(new())
    assert app.conf[name] is True
    app.config_from_object(module(**{name: False}))
    return app


def with_namespace(name: str) -> Celery:
    app = celery_superfetch.install(new())
    app.config_from_object(module(**{f"CELERY_{name.upper()}": False}), namespace="CELERY")
    return app


def with_namespace_before(name: str) -> Celery:
    app = new()
    app.config_from_object(module(**{f"CELERY_{name.upper()}": False}), namespace="CELERY")
    return celery_superfetch.install(app)


def old_style_before(name: str) -> Celery:
    app = new()
    app.config_from_object(module(**{OLD_NAMES[name]: False}))
    return celery_superfetch.install(app)


def old_style_after(name: str) -> Celery:
    app = celery_superfetch.install(new())
    app.config_from_object(module(**{OLD_NAMES[name]: False}))
    return app


def class_of_settings(name: str) -> Celery:
    app = new()
    app.config_from_object(type("Settings", (), {name: False}))
    return celery_superfetch.install(app)


def defaults_of_the_app(name: str) -> Celery:
    app = celery_superfetch.install(new())
    app.add_defaults({name: False})
    return app


WAYS = [
    attribute_before,
    attribute_after,
    attribute_after_reading,
    update_before,
    update_after,
    module_before,
    module_before_and_read,
    module_after,
    module_after_reading,
    with_namespace,
    with_namespace_before,
    old_style_before,
    old_style_after,
    class_of_settings,
    defaults_of_the_app,
]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_setting_of_the_user_is_kept_if_set_by(way: Callable[[str], Celery], name: str) -> None:
    app = way(name)
    other = next(iter(set(OURS) - {name}))
    assert app.conf[name] is False
    assert app.conf[other] is True, "and the other one is ours"


def test_a_task_of_its_own_mind_keeps_it() -> None:
    app = celery_superfetch.install(new())

    @app.task(name="early", acks_late=False, shared=False)
    def early() -> None: ...

    @app.task(name="late", shared=False)
    def late() -> None: ...

    app.finalize()
    assert app.tasks["early"].acks_late is False
    assert app.tasks["late"].acks_late is True
    assert app.tasks["late"].reject_on_worker_lost is True


def test_a_task_that_was_made_before_install_acks_late_too() -> None:
    app = new()

    @app.task(name="late", shared=False)
    def late() -> None: ...

    celery_superfetch.install(app)
    app.finalize()
    assert app.tasks["late"].acks_late is True


def test_celerys_own_defaults_stay_what_they_are_for_other_apps() -> None:
    celery_superfetch.install(new()).finalize()
    stock = new()
    assert {name: stock.conf[name] for name in OURS} == {
        "task_acks_late": False,
        "task_reject_on_worker_lost": None,
    }
    assert not stock.conf.beat_schedule
    assert "celery_superfetch.reap" not in stock.tasks


def test_the_users_own_dictionaries_are_not_written_into() -> None:
    options: dict[str, Any] = {"priority_steps": [0, 5]}
    schedule: dict[str, Any] = {"mine": {"task": "t"}}
    app = new()
    app.config_from_object(module(broker_transport_options=options, beat_schedule=schedule))
    celery_superfetch.install(app, strike_limit=5)
    assert app.conf.broker_transport_options["strike_limit"] == 5
    assert set(app.conf.beat_schedule) == {"mine", "superfetch-reap"}
    assert options == {"priority_steps": [0, 5]}
    assert schedule == {"mine": {"task": "t"}}
