"""What the user set stays set, in whichever way and however late."""

from __future__ import annotations

import json
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler

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


#: How a user may set a setting.
WAYS: dict[str, Callable[[Celery, str], object]] = {
    "attribute": lambda app, name: setattr(app.conf, name, False),
    "update": lambda app, name: app.conf.update({name: False}),
    "module": lambda app, name: app.config_from_object(module(**{name: False})),
    "module, read at once": lambda app, name: app.config_from_object(
        module(**{name: False}), force=True
    ),
    "class": lambda app, name: app.config_from_object(type("Settings", (), {name: False})),
    "namespace": lambda app, name: app.config_from_object(
        module(**{f"CELERY_{name.upper()}": False}), namespace="CELERY"
    ),
    "old name": lambda app, name: app.config_from_object(module(**{OLD_NAMES[name]: False})),
    "defaults of the app": lambda app, name: app.add_defaults({name: False}),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("when", ["before", "after", "after it was read"])
@pytest.mark.parametrize("way", WAYS)
def test_a_setting_of_the_user_is_kept_if_set_by(way, when, name):
    app = new()
    if when == "before":
        WAYS[way](app, name)
    celery_superfetch.install(app)
    if when == "after it was read":
        assert app.conf[name] is True
    if when != "before":
        WAYS[way](app, name)
    app.finalize()
    other = next(iter(set(OURS) - {name}))
    assert app.conf[name] is False
    assert app.conf[other] is True, "and the other one is ours"


def test_a_task_of_its_own_mind_keeps_it():
    app = celery_superfetch.install(new())

    @app.task(name="early", acks_late=False, shared=False)
    def early() -> None: ...

    @app.task(name="late", shared=False)
    def late() -> None: ...

    app.finalize()
    assert app.tasks["early"].acks_late is False
    assert app.tasks["late"].acks_late is True
    assert app.tasks["late"].reject_on_worker_lost is True


def test_a_task_that_was_made_before_install_acks_late_too():
    app = new()

    @app.task(name="late", shared=False)
    def late() -> None: ...

    celery_superfetch.install(app)
    app.finalize()
    assert app.tasks["late"].acks_late is True


def test_celerys_own_defaults_stay_what_they_are_for_other_apps():
    celery_superfetch.install(new()).finalize()
    stock = new()
    assert {name: stock.conf[name] for name in OURS} == {
        "task_acks_late": False,
        "task_reject_on_worker_lost": None,
    }
    assert not stock.conf.beat_schedule
    assert "celery_superfetch.reap" not in stock.tasks


def test_the_users_own_dictionaries_are_not_written_into():
    options: dict[str, Any] = {"priority_steps": [0, 5]}
    schedule: dict[str, Any] = {"mine": {"task": "t"}}
    app = new()
    app.config_from_object(module(broker_transport_options=options, beat_schedule=schedule))
    celery_superfetch.install(app, strike_limit=5)
    assert app.conf.broker_transport_options["strike_limit"] == 5
    assert set(app.conf.beat_schedule) == {"mine", "superfetch-reap"}
    assert options == {"priority_steps": [0, 5]}
    assert schedule == {"mine": {"task": "t"}}


@pytest.mark.parametrize("schedule", [{"mine": {"task": "t"}}, {}], ids=["filled", "empty"])
def test_what_is_added_to_the_users_own_schedule_later_is_seen(schedule):
    """A module that is loaded after the configuration was read adds its entries to the settings'
    own dictionary: beat never sent them."""
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule=schedule))
    assert "superfetch-reap" in app.conf.beat_schedule
    schedule["early"] = {"task": "t"}
    app.finalize()
    schedule["late"] = {"task": "t"}
    assert {*app.conf.beat_schedule} == {*schedule, "superfetch-reap"}
    assert "superfetch-reap" not in schedule


@pytest.mark.parametrize(
    "add",
    [
        lambda schedule: ChainMap({"own": {"task": "t"}}, schedule),
        lambda schedule: schedule | {"own": {"task": "t"}},
        lambda schedule: {"own": {"task": "t"}} | schedule,
    ],
    ids=["chain", "or", "or dictionary"],
)
def test_what_the_user_makes_of_the_schedule_is_kept_whole(add):
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule={"mine": {"task": "t"}}))
    app.conf.beat_schedule = add(app.conf.beat_schedule)
    app.finalize()
    assert {*app.conf.beat_schedule} == {"mine", "own", "superfetch-reap"}


def test_a_chain_that_the_user_makes_of_the_schedule_has_what_is_added_later():
    own: dict[str, Any] = {"mine": {"task": "t"}}
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule=own))
    app.conf.beat_schedule = ChainMap({"own": {"task": "t"}}, app.conf.beat_schedule)
    app.finalize()
    own["late"] = {"task": "t"}
    assert {*app.conf.beat_schedule} == {"mine", "own", "late", "superfetch-reap"}


@pytest.mark.parametrize("namespace", [None, "CELERY"])
@pytest.mark.parametrize("own", [{"mine": {"task": "t"}, "other": {"task": "t"}}, {}])
def test_the_schedule_is_a_plain_dictionary(own, namespace):
    """`del` and `pop` raised KeyError."""
    names = {"beat_schedule": own} if namespace is None else {"CELERY_BEAT_SCHEDULE": own}
    app = celery_superfetch.install(new())
    app.config_from_object(module(**names), namespace=namespace)
    schedule = app.conf.beat_schedule
    assert type(schedule) is dict
    assert schedule is app.conf.beat_schedule
    app.add_periodic_task(5, app.signature("t"), name="added")
    assert {*app.conf.beat_schedule} == {*own, "added", "superfetch-reap"}
    for name in own:
        assert app.conf.beat_schedule.pop(name)
    del app.conf.beat_schedule["added"]
    assert {*app.conf.beat_schedule} == {"superfetch-reap"}
    app.finalize()
    assert {*app.conf.beat_schedule} == {"superfetch-reap"}
    assert json.loads(json.dumps(app.conf.beat_schedule)) == app.conf.beat_schedule
    assert pickle.loads(pickle.dumps(app.conf.beat_schedule)) == app.conf.beat_schedule


REMOVALS: dict[str, Callable[[Any], object]] = {
    "del": lambda conf: conf.beat_schedule.__delitem__("superfetch-reap"),
    "pop": lambda conf: conf.beat_schedule.pop("superfetch-reap"),
    "clear": lambda conf: conf.beat_schedule.clear(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=[*REMOVALS])
def test_what_the_user_takes_out_of_the_schedule_stays_out(remove):
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule={"mine": {"task": "t"}}))
    remove(app.conf)
    app.finalize()
    celery_superfetch.install(app, reap_interval=30)
    assert "superfetch-reap" not in app.conf.beat_schedule
    app.conf.beat_schedule = {"other": {"task": "t"}}
    celery_superfetch.install(app)
    assert {*app.conf.beat_schedule} == {"other"}


def test_beat_sends_what_is_in_the_schedule_when_it_starts():
    own: dict[str, Any] = {"mine": {"task": "t", "schedule": 5}}
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule=own))
    app.finalize()
    own["late"] = {"task": "t", "schedule": 5}
    every = {"mine", "late", "superfetch-reap"}
    assert {*Scheduler(app).schedule} == every
    del app.conf.beat_schedule["superfetch-reap"]
    assert {*Scheduler(app).schedule} == every - {"superfetch-reap"}


def test_what_the_user_takes_out_of_his_own_dictionary_goes():
    own = {"mine": {"task": "t"}, "other": {"task": "t"}}
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule=own))
    app.conf.beat_schedule["mine"] = changed = {"task": "changed"}
    own.clear()
    assert {**app.conf.beat_schedule} == {
        "mine": changed,
        "superfetch-reap": app.conf.beat_schedule["superfetch-reap"],
    }


@pytest.mark.parametrize("nothing", [None, [], ()], ids=repr)
def test_a_schedule_that_says_nothing_is_none(nothing):
    app = celery_superfetch.install(new())
    app.config_from_object(module(beat_schedule=nothing))
    assert dict(app.conf.beat_schedule).keys() == {"superfetch-reap"}
