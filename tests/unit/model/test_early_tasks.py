"""Which tasks do not keep what the settings promise, and whether their authors chose that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task, _state, shared_task

import celery_superfetch
from celery_superfetch.model.early_tasks import NAMES_IN_LOG, EarlyTasks, early_tasks

NOTHING = EarlyTasks([], [], [])
URL = "redis://localhost:6399/0"


@pytest.fixture
def app() -> Iterator[Celery]:
    """Nobody's current app, and without the shared tasks of others."""
    finalizers = _state._on_app_finalizers
    before = {*finalizers}
    finalizers -= {add for add in finalizers if add.__module__ != "celery.app.builtins"}
    made = Celery("shop", broker=URL, set_as_current=False)
    yield made
    made.close()
    finalizers.clear()
    finalizers |= before


def bill() -> None:
    """A task."""


def function(app: Celery, base: Any = None, **options: Any) -> None:
    app.task(name="bill", shared=False, base=base, **options)(bill).s()


def unlazy(app: Celery, **options: Any) -> None:
    app.task(name="bill", shared=False, lazy=False, **options)(bill)


def with_class(app: Celery, **attributes: Any) -> None:
    named = {"name": "bill", "run": staticmethod(bill), **attributes}
    app.register_task(type("Bill", (app.Task,), named)())


def shared(app: Celery, **options: Any) -> None:
    shared_task(name="bill", **options)(bill)
    app.finalize()


def settings_and_install(app: Celery, **conf: Any) -> None:
    app.conf.update({"task_acks_late": True, **conf})
    celery_superfetch.install(app)


WAYS = [function, unlazy, with_class, shared]


@pytest.mark.parametrize("define", WAYS)
def test_a_task_that_was_used_before_the_settings_is_outdated(app, define):
    define(app)
    settings_and_install(app)
    assert not app.tasks["bill"].acks_late, "the harm"
    assert early_tasks(app) == NOTHING._replace(outdated=["bill"])


@pytest.mark.parametrize("define", WAYS)
def test_after_the_settings_all_is_well(app, define):
    settings_and_install(app)
    define(app)
    assert app.tasks["bill"].acks_late
    assert early_tasks(app) == NOTHING


@pytest.mark.parametrize("define", WAYS)
@pytest.mark.parametrize("order", ["task first", "settings first"])
def test_early_ack_may_be_a_choice(app, define, order):
    """Which is no reason to refuse the installation either."""
    if order == "task first":
        define(app, acks_late=False)
        celery_superfetch.install(app)
    else:
        settings_and_install(app)
        define(app, acks_late=False)
    assert early_tasks(app) == NOTHING._replace(chosen=["bill"])


def test_an_attribute_of_the_task_is_a_choice(app):
    settings_and_install(app)
    function(app)
    app.tasks["bill"].acks_late = False
    assert early_tasks(app) == NOTHING._replace(chosen=["bill"])


class Careless(Task):  # type: ignore[misc]
    """A base class of the user."""

    abstract = True
    acks_late = False


@pytest.mark.parametrize("order", ["tasks first", "settings first"])
def test_a_base_class_may_choose_it_too(app, order):
    if order == "tasks first":
        function(app, base=Careless)
    settings_and_install(app)
    function(app, base=Careless)
    assert early_tasks(app) == NOTHING._replace(chosen=["bill"])


@pytest.mark.parametrize("define", WAYS)
def test_late_ack_alone_loses_what_its_pool_process_runs(app, define):
    """Before the app is finalized Celery copies once more what was None."""
    define(app, acks_late=True)
    app.finalize()
    settings_and_install(app)
    assert early_tasks(app) == NOTHING._replace(dropped=["bill"])


@pytest.mark.parametrize("promise", ["task_acks_late", "task_reject_on_worker_lost"])
def test_where_the_settings_promise_nothing_no_task_breaks_a_promise(app, promise):
    function(app, acks_late=None if promise == "task_acks_late" else True)
    app.finalize()
    settings_and_install(app, **{promise: False})
    assert early_tasks(app) == NOTHING


def test_an_app_that_finalizes_by_hand(app):
    app.autofinalize = False
    task = app.task(name="bill", shared=False)(bill)
    settings_and_install(app)
    app.finalize()
    assert task.acks_late
    assert early_tasks(app) == NOTHING


def test_a_task_of_another_app_keeps_the_settings_of_that_one(app):
    other = Celery("other", broker=URL, set_as_current=False)
    function(other)
    settings_and_install(app)
    app.tasks.register(other.tasks["bill"])
    other.close()
    assert early_tasks(app) == NOTHING._replace(outdated=["bill"])


@pytest.mark.parametrize("order", ["receiver first", "install first"])
def test_a_receiver_that_adds_a_periodic_task_comes_after_us(app, order):
    """As Celery's own pages do it. Before, the task had copied Celery's defaults by then."""

    def add(sender: Celery, **_: Any) -> None:
        sender.add_periodic_task(10.0, task.s())

    def install() -> None:
        celery_superfetch.install(app)

    def connect() -> None:
        app.on_after_configure.connect(add, weak=False)

    task = app.task(name="bill", shared=False)(bill)
    steps: list[Callable[[], None]] = [connect, install]
    for step in steps if order == "receiver first" else reversed(steps):
        step()
    app.finalize()
    assert app.tasks["bill"].acks_late
    assert early_tasks(app) == NOTHING
    assert len(app.conf.beat_schedule) == 2


def test_messages_name_the_tasks_and_are_bounded():
    names = [f"task{number:03}" for number in range(NAMES_IN_LOG + 5)]
    early = EarlyTasks(outdated=names, chosen=["c"], dropped=["b"])
    [(outdated, first), (dropped, second), (chosen, third)] = early.messages()
    assert (outdated, dropped, chosen) == (True, True, False)
    assert f"{names[NAMES_IN_LOG - 1]} and 5 more" in first
    assert "acks_late=True" in first
    assert "task_reject_on_worker_lost is on: b." in second
    assert "acks_late=False, so a killed worker loses the jobs that it runs: c." in third
    assert not [*NOTHING.messages()]
