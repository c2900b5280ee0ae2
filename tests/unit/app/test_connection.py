"""Which transport a URL leads to: an installed app's own, and everybody else's as before."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu.transport import memory, redis

import celery_superfetch
from celery_superfetch.app import broker
from celery_superfetch.errors import ConfigError
from celery_superfetch.transport.transport import FIRST_CALL

FIRST, SECOND = "redis://first:6399/0", "redis://second:6399/3"
SENTINELS = "sentinel://one:26379;sentinel://two:26379"
Make = Callable[..., Celery]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make(url, install=True, **conf)`: an app that is nobody's current one."""
    made: list[Celery] = []

    def start(url: Any, install: bool = True, **conf: Any) -> Celery:
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.update(conf)
        made.append(celery_superfetch.install(app) if install else app)
        return made[-1]

    yield start
    for app in made:
        app.close()


def ours(connection: kombu.Connection) -> bool:
    return issubclass(type(connection.transport), celery_superfetch.Transport)


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost:6399/0",
        "rediss://localhost:6399/0?ssl_cert_reqs=required",
        "redis+socket:///tmp/none.sock?virtual_host=2",
        "redis://user:p%40ss@localhost:6399/5",
    ],
)
def test_every_kind_of_redis_url_is_served(make, url):
    app = make(url)
    for connect in (app.connection, app.connection_for_read, app.connection_for_write):
        with connect() as connection:
            assert ours(connection)


@pytest.mark.parametrize(
    ("urls", "stock"),
    [
        (FIRST, redis.Transport),
        (f"{FIRST};{SECOND}", redis.Transport),
        (SENTINELS, redis.SentinelTransport),
    ],
)
def test_another_app_in_the_process_stays_stock(make, urls, stock):
    make(FIRST)
    for connection in (make(urls, install=False).connection(), kombu.Connection(urls)):
        with connection:
            assert type(connection.transport) is stock
            connection.maybe_switch_next()
            assert type(connection.transport) is stock


def test_an_app_whose_amqp_was_used_before_install_is_served(make):
    app = make(FIRST, install=False)
    stock = app.amqp.send_task_message
    celery_superfetch.install(app)
    assert app.amqp.send_task_message is not stock
    with app.connection() as connection:
        assert ours(connection)


def test_connections_of_the_apps_pool_are_ours_whoever_came_first(make):
    """A consumer on one of them would hide jobs in stock's hash."""
    for first in (True, False):
        apps = {installed: make(FIRST, install=installed) for installed in (first, not first)}
        for installed, app in apps.items():
            with app.pool.acquire() as connection:
                assert ours(connection) is installed
            with app.producer_pool.acquire() as producer:
                assert ours(producer.connection) is installed
        assert apps[True].pool is not apps[False].pool
        assert make(FIRST).pool is apps[True].pool, "equal ones still share a pool"


def test_an_apps_own_amqp_class_is_kept(make):
    from celery.app.amqp import AMQP

    class Own(AMQP):
        """An AMQP that its user extended."""

    app = make(FIRST, install=False)
    app.amqp_cls = Own
    celery_superfetch.install(app)
    assert isinstance(app.amqp, Own)
    assert isinstance(app.amqp, broker.AMQP)
    with app.connection() as connection:
        assert ours(connection)


@pytest.mark.parametrize("urls", [f"{FIRST};{SECOND}", [FIRST, SECOND]], ids=["text", "list"])
def test_a_failover_list_keeps_our_transport(make, urls):
    with make(urls).connection() as connection:
        assert ours(connection)
        for _ in range(4):
            connection.maybe_switch_next()
            assert ours(connection)
        connection.switch(SECOND)
        assert ours(connection)
        assert connection.hostname == "second"


def test_clones_keep_our_transport_and_its_options(make):
    """Celery's heartbeat thread and pools clone; a clone may be switched as well."""
    app = make(f"{FIRST};{SECOND}", broker_transport_options={"owner_ttl": 44})
    with app.connection() as connection, connection.clone() as clone:
        assert ours(clone)
        assert clone.transport.config.owner_ttl == 44
        clone.maybe_switch_next()
        assert ours(clone)
        with clone.clone() as another:
            assert ours(another)


@pytest.mark.parametrize(
    ("urls", "name"), [(f"{FIRST};{SECOND}", "Transport"), (SENTINELS, "SentinelTransport")]
)
def test_a_transport_that_is_named_needs_no_install_and_survives_a_switch(make, urls, name):
    options = {"master_name": "shop"} if name.startswith("Sentinel") else {}
    conf = {"broker_transport": f"celery_superfetch:{name}", "broker_transport_options": options}
    with make(urls, install=False, **conf).connection() as connection:
        assert ours(connection)
        connection.maybe_switch_next()
        assert ours(connection)
        with connection.clone() as clone:
            assert ours(clone)
            clone.maybe_switch_next()
            assert ours(clone)


def test_the_named_transport_works_with_plain_kombu():
    with kombu.Connection(FIRST, transport="celery_superfetch:Transport") as connection:
        assert ours(connection)
    with kombu.Connection(FIRST, transport=celery_superfetch.Transport) as connection:
        assert ours(connection)


@pytest.mark.parametrize(
    "url", ["redis://localhost:6399/0", "redis://user:secret@localhost:6399/2", "rediss://h:1/0"]
)
def test_a_connection_is_named_as_a_stock_one(make, url):
    """Flower finds its broker page by the scheme."""
    with make(url).connection() as new, make(url, install=False).connection() as stock:
        assert new.as_uri() == stock.as_uri()
        assert new.info()["transport"] == stock.info()["transport"]
        assert new.transport.driver_type == stock.transport.driver_type == "redis"
        assert "secret" not in new.as_uri()


def test_rediss_keeps_its_tls_defaults(make):
    url = "rediss://localhost:6399/0"
    conf = {"broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED}}
    with make(url, **conf).connection() as new, make(url, False, **conf).connection() as stock:
        assert ours(new)
        assert new.ssl == stock.ssl
        assert new.ssl


def test_a_switch_to_a_tls_url_is_as_in_stock(make):
    urls = f"{FIRST};rediss://second:6399/0?ssl_cert_reqs=required"
    with make(urls).connection() as new, make(urls, install=False).connection() as stock:
        new.maybe_switch_next()
        stock.maybe_switch_next()
        assert ours(new)
        assert new.ssl == stock.ssl
        assert new.hostname == stock.hostname


def test_sentinels_are_served_whichever_is_current(make):
    app = make(SENTINELS, broker_transport_options={"master_name": "shop"})
    for connect in (app.connection, app.connection_for_read, app.connection_for_write):
        with connect() as connection:
            assert isinstance(connection.transport, celery_superfetch.SentinelTransport)
            connection.maybe_switch_next()
            assert isinstance(connection.transport, celery_superfetch.SentinelTransport)
            with connection.clone() as clone:
                assert isinstance(clone.transport, celery_superfetch.SentinelTransport)


@pytest.mark.parametrize(
    ("url", "options", "patient"),
    [
        (FIRST, {}, False),
        (FIRST, {"global_keyprefix": "shop:"}, False),
        (FIRST, {"global_keyprefix": "{shop}:"}, True),
        (f"{FIRST};{SECOND}", {}, True),
        (SENTINELS, {"master_name": "shop"}, True),
    ],
)
def test_a_first_call_is_patient_where_another_server_may_take_over(make, url, options, patient):
    """Of one server that is away, `retry=False` told after 30 s, and stock after 6: a web server
    kills a worker that waits for so long, and the next one waits as well."""
    with make(url, broker_transport_options=options).connection_for_write() as connection:
        assert connection.transport
        limit = connection.transport_options.get("connect_retries_timeout")
        assert limit == (FIRST_CALL if patient else None)


def test_sentinels_without_the_name_of_a_primary_are_refused_by_name(make):
    connection = make(SENTINELS).connection()
    with pytest.raises(ConfigError, match="master_name"):
        connection.transport  # noqa: B018


def test_an_unknown_option_for_sentinels_is_refused_with_the_nearest(make):
    app = make(SENTINELS, broker_transport_options={"mastername": "shop"})
    with pytest.raises(ConfigError, match="did you mean 'master_name'"):
        app.connection().transport  # noqa: B018


def test_another_broker_works_as_ever_and_is_warned_of(make, caplog):
    """A test suite sets memory:// and keeps its line of `install`."""
    with caplog.at_level(logging.WARNING), make("memory://").connection() as connection:
        assert type(connection.transport) is memory.Transport
        queue = connection.SimpleQueue("mail")
        queue.put({"n": 1})
        assert queue.get(timeout=5).payload == {"n": 1}
        queue.close()
    warnings = [r.getMessage() for r in caplog.records if "celery_superfetch" in r.name]
    assert any("memory" in text for text in warnings), warnings


def test_a_redis_broker_is_not_warned_of(make, caplog):
    with caplog.at_level(logging.WARNING), make(FIRST).connection() as connection:
        assert ours(connection)
    assert not caplog.records
