"""`install(app)` on the configuration alone: no server is asked."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, _state

import celery_superfetch
from celery_superfetch.app.broker import config_of
from celery_superfetch.errors import ConfigError
from celery_superfetch.model.config import Config
from celery_superfetch.store.redis.server import warn_once

URL = "redis://localhost:6399/0"
ENTRY = "superfetch-reap"
Make = Callable[..., Celery]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make("name", ...)`: nobody's current app, and without the shared tasks of others."""
    made: list[Celery] = []
    finalizers = _state._on_app_finalizers
    shared = {add for add in finalizers if add.__module__ != "celery.app.builtins"}
    finalizers -= shared

    def start(name: str = "shop", **options: Any) -> Celery:
        made.append(Celery(name, set_as_current=False, **{"broker": URL, **options}))
        return made[-1]

    yield start
    for app in made:
        app.close()
    finalizers |= shared


def settings(**values: Any) -> types.ModuleType:
    module = types.ModuleType("settings")
    vars(module).update(values)
    return module


def installed(app: Celery) -> bool:
    """Whether everything that `install` promises is in the app's configuration."""
    conf = app.conf
    return (
        conf.task_acks_late is True
        and conf.task_reject_on_worker_lost is True
        and ENTRY in conf.beat_schedule
        and "celery_superfetch.reap" in app.tasks
        and config_of(app).app_name == app.main
    )


def test_one_line_is_all(make):
    app = make()
    assert celery_superfetch.install(app) is app
    assert installed(app)
    assert config_of(app) == Config(app_name="shop")


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_beside_config_from_object(make, before):
    app = make()
    if before:
        celery_superfetch.install(app, strike_limit=5)
    app.config_from_object(
        settings(task_default_queue="mail", beat_schedule={"mine": {"task": "t"}})
    )
    if not before:
        celery_superfetch.install(app, strike_limit=5)
    assert installed(app)
    assert app.conf.task_default_queue == "mail"
    assert set(app.conf.beat_schedule) == {"mine", ENTRY}
    assert config_of(app).strike_limit == 5


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_with_djangos_way_of_configuring(make, before):
    """`app.config_from_object("django.conf:settings", namespace="CELERY")`."""
    app = make(broker=None)
    if before:
        celery_superfetch.install(app)
    app.config_from_object(
        settings(
            CELERY_BROKER_URL=URL,
            CELERY_BROKER_TRANSPORT_OPTIONS={"owner_ttl": 33},
            CELERY_TASK_DEFAULT_QUEUE="mail",
            CELERY_BEAT_SCHEDULE={"mine": {"task": "t"}},
        ),
        namespace="CELERY",
    )
    if not before:
        celery_superfetch.install(app)
    assert installed(app)
    assert set(app.conf.beat_schedule) == {"mine", ENTRY}
    assert config_of(app).owner_ttl == 33
    with app.connection_for_read() as connection:
        assert connection.get_transport_cls() is celery_superfetch.Transport


def test_after_the_app_is_configured_and_finalized(make):
    app = make()
    app.finalize()
    assert app.conf.task_default_queue == "celery"
    celery_superfetch.install(app)
    assert installed(app)


def bill() -> None:
    """A task."""


def registered(app: Celery) -> None:
    app.register_task(type("Bill", (app.Task,), {"name": "bill", "run": staticmethod(bill)})())


def used(app: Celery) -> None:
    app.task(name="bill", shared=False)(bill).s()


def unlazy(app: Celery) -> None:
    app.task(name="bill", shared=False, lazy=False)(bill)


@pytest.mark.parametrize("bound", [registered, used, unlazy])
def test_after_a_task_has_taken_celerys_defaults_it_is_refused(make, bound):
    """It acked its jobs before they ran, and a killed worker lost them without a word."""
    app = make()
    bound(app)
    with pytest.raises(ConfigError, match=r"install\(app\) was called too late for bill: "):
        celery_superfetch.install(app)
    assert not installed(app)
    right = celery_superfetch.install(make())
    bound(right)
    assert right.tasks["bill"].acks_late
    chosen = make()
    chosen.conf.task_acks_late = False
    bound(chosen)
    celery_superfetch.install(chosen)
    assert not chosen.tasks["bill"].acks_late, "who says so means it"


def test_configured_again_by_another_module(make):
    app = make()
    app.config_from_object(settings(task_default_queue="mail"))
    celery_superfetch.install(app, strike_limit=4)
    assert installed(app)
    app.config_from_object(settings(task_default_queue="other"))
    assert app.conf.task_default_queue == "other"
    assert installed(app)
    assert config_of(app).strike_limit == 4


def test_with_autofinalize_off(make):
    """Such an app forbids to look at its tasks before it is finalized: install must not."""
    app = celery_superfetch.install(make(autofinalize=False))
    app.finalize()
    assert installed(app)


def test_a_schedule_set_after_install_is_kept_and_added_to(make):
    app = celery_superfetch.install(make())
    app.conf.beat_schedule = {"mine": {"task": "t"}}
    app.finalize()
    assert set(app.conf.beat_schedule) == {"mine", ENTRY}


def test_twice_is_as_good_as_once(make):
    once, twice = make(), make()
    celery_superfetch.install(once, strike_limit=5)
    celery_superfetch.install(twice, strike_limit=5)
    celery_superfetch.install(twice)
    assert installed(twice)
    assert set(twice.tasks) == set(once.tasks)
    for blueprint in ("worker", "consumer"):
        assert twice.steps[blueprint] == once.steps[blueprint]
        assert len(twice.steps[blueprint]) >= 1
    assert config_of(twice) == config_of(once)
    assert twice.conf.beat_schedule == once.conf.beat_schedule


def test_later_options_win_and_the_others_stay(make):
    app = celery_superfetch.install(make(), strike_limit=5, owner_ttl=30)
    celery_superfetch.install(app, strike_limit=7)
    assert (config_of(app).strike_limit, config_of(app).owner_ttl) == (7, 30)


def test_options_are_merged_into_the_transports(make):
    app = make(broker_transport_options={"priority_steps": [0, 5], "owner_ttl": 45})
    app.conf.broker_transport_options = {"priority_steps": [0, 5], "owner_ttl": 45}
    celery_superfetch.install(app, strike_limit=5)
    options = app.conf.broker_transport_options
    assert options["priority_steps"] == [0, 5]
    assert (config_of(app).owner_ttl, config_of(app).strike_limit) == (45, 5)


def test_the_interval_of_the_beat_entry_is_the_reap_interval(make):
    app = celery_superfetch.install(make(), reap_interval=4)
    entry = app.conf.beat_schedule[ENTRY]
    assert entry["task"] == "celery_superfetch.reap"
    assert entry["schedule"] == 4


def test_an_interval_of_a_later_install_is_the_entrys_too(make):
    app = celery_superfetch.install(make(), reap_interval=45)
    assert app.conf.beat_schedule[ENTRY]["schedule"] == 45
    celery_superfetch.install(app, reap_interval=30)
    assert app.conf.beat_schedule[ENTRY]["schedule"] == 30


def test_the_users_own_entry_is_kept(make):
    own = {"task": "celery_superfetch.reap", "schedule": 77.0}
    app = make()
    app.conf.beat_schedule = {ENTRY: own}
    celery_superfetch.install(app)
    app.finalize()
    assert app.conf.beat_schedule == {ENTRY: own}


def test_an_unknown_option_is_refused_and_the_app_left_alone(make):
    app = make()
    amqp, steps = app.amqp_cls, {name: set(found) for name, found in app.steps.items()}
    with pytest.raises(ConfigError, match="did you mean 'owner_ttl'"):
        celery_superfetch.install(app, owner_tll=30)
    with pytest.raises(ConfigError, match="heartbeat_interval"):
        celery_superfetch.install(app, heartbeat_interval=50, owner_ttl=60)
    assert app.amqp_cls == amqp
    assert {name: set(found) for name, found in app.steps.items()} == steps
    assert app.conf.task_acks_late is False
    assert not app.conf.beat_schedule
    assert "celery_superfetch.reap" not in app.tasks


def test_a_refused_second_install_leaves_the_first_as_it_was(make):
    app = celery_superfetch.install(make(), heartbeat_interval=20)
    with pytest.raises(ConfigError):
        celery_superfetch.install(app, owner_ttl=30)  # less than 2 * 20
    assert config_of(app).owner_ttl == 60
    assert config_of(app).heartbeat_interval == 20


def test_a_wrong_option_of_the_transport_is_refused_when_it_is_needed(make, caplog):
    """E2. Who only publishes needs none of them: stock kombu ignores what it does not know."""
    warn_once.cache_clear()
    app = make()
    app.conf.broker_transport_options = {"owner_tll": 30}
    celery_superfetch.install(app)
    for _ in range(2):
        with app.connection() as conn, pytest.raises(ConfigError, match="did you mean 'owner_ttl'"):
            conn.transport.config  # noqa: B018
    assert [record.levelname for record in caplog.records] == ["WARNING"], "once"
    assert "did you mean 'owner_ttl'" in caplog.text
    with pytest.raises(ConfigError, match="did you mean 'owner_ttl'"):
        config_of(app)


def test_kombus_options_may_be_given_to_install_as_well(make):
    """E2."""
    app = celery_superfetch.install(make(), visibility_timeout=60, owner_ttl=90)
    assert app.conf.broker_transport_options["visibility_timeout"] == 60
    assert config_of(app).owner_ttl == 90


def test_an_installed_app_can_be_pickled_as_a_stock_one_can(make):
    stock = pickle.loads(pickle.dumps(make()))
    assert stock.conf.broker_url == URL, "the control"
    app = celery_superfetch.install(make(), strike_limit=5)
    assert installed(app)
    copy = pickle.loads(pickle.dumps(app))
    assert copy.conf.broker_url == URL
    with copy.connection() as connection:
        assert connection.get_transport_cls() is celery_superfetch.Transport


def test_options_are_checked_together_with_those_of_the_transport(make):
    """50 s go badly with the default `owner_ttl`, and well with the user's."""
    app = make()
    app.conf.broker_transport_options = {"owner_ttl": 600}
    celery_superfetch.install(app, heartbeat_interval=50)
    assert config_of(app).heartbeat_interval == 50
